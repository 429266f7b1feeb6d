"""The tokens that the device chooses, and the drafts that it lays out and keeps."""

import dataclasses

import numpy as np
import pytest
from test_decoding import WARM, engine

from nanoeuler.backend.records import ChoiceRows, DraftRows
from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import GREEDY, NOT_FINITE, Sampling, check, sample
from tests.choosing_backend import ChoosingReference

pytestmark = pytest.mark.gpu
SETTINGS = [
    GREEDY,
    Sampling(),
    Sampling(temperature=1.0, top_p=1.0, seed=2**64 - 1),
    Sampling(temperature=0.3, top_k=5, top_p=0.9, seed=3),
    Sampling(temperature=2.0, top_k=1, top_p=1.0),
    Sampling(temperature=5.0, top_k=10**9, top_p=0.5),
    Sampling(temperature=1e-300),
    Sampling(temperature=1.0, top_p=1e-9),
]


def chosen_by_device(backend, logits, samplings, positions, allowed):
    rows = len(logits)
    bits = b"".join(
        np.array([sampling.temperature, sampling.top_p]).tobytes()
        + np.array([sampling.seed], np.uint64).tobytes()
        + np.array([sampling.top_k]).tobytes()
        for sampling in samplings
    )
    settings = np.frombuffer(bits, np.int64).reshape(len(samplings), 4)
    settings = backend.from_host(settings if len(samplings) > 1 else settings[0])
    draws = backend.from_host(np.asarray(positions, np.int64))
    chosen, tokens, lengths = (backend.from_host(np.full(rows, -7, np.int32)) for _ in range(3))
    ring = backend.runtime.host_ring(chosen, 1)
    masks = None
    if allowed.ndim == 2:  # of each row, which words of 32 bits have
        allowed = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
        masks = backend.from_host(np.packbits(allowed, axis=1, bitorder="little").view(np.uint32))
        allowed = np.ones(logits.shape[1])
    backend.choose(
        backend.from_host(logits),
        backend.from_host(allowed.astype(np.uint8)),
        ChoiceRows(settings, draws, chosen, tokens, lengths),
        ring,
        masks,
    )
    ring.expect()
    np.testing.assert_array_equal(ring.take(), backend.to_host(chosen))
    np.testing.assert_array_equal(backend.to_host(tokens), np.maximum(backend.to_host(chosen), 0))
    assert (backend.to_host(draws) == np.asarray(positions) + 1).all()
    assert (backend.to_host(lengths) == -6).all()
    return backend.to_host(chosen)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("vocabulary", [2, 300, 999, 4096, 50_257, 70_001])
def test_the_device_chooses_what_the_host_chooses(vocabulary, portable):
    import ml_dtypes

    backend = engine("bf16", portable=portable)
    random = np.random.default_rng(vocabulary)
    peaked = -1.1 * np.log(np.arange(1, vocabulary + 1)) + 0.3 * random.standard_normal(
        (64, vocabulary)
    )  # as words are distributed
    logits = np.stack([random.permuted(row) for row in 4 + 2 * peaked]).astype(np.float32)
    logits[::4] = logits[::4].astype(ml_dtypes.bfloat16)  # many of them equal
    logits[1::4] = 3 * random.standard_normal((16, vocabulary))
    # nearly all of them in one bin, hundreds to thousands equal
    logits[2::8] = -1 + np.float32(6e-8) * random.integers(
        0, [[1], [2], [9], [99]] * 2, (8, vocabulary)
    )
    logits[2::8, 1] = 0
    logits[-1] = 0
    allowed = random.random(vocabulary) < 0.9
    allowed[0] = True
    for shift in range(len(SETTINGS)):  # each row has settings of its own, as in the server
        samplings = [SETTINGS[(row + shift) % len(SETTINGS)] for row in range(64)]
        positions = random.integers(0, 2**40, 64)
        chosen = chosen_by_device(backend, logits, samplings, positions, allowed)
        np.testing.assert_array_equal(chosen, sample(logits, samplings, positions, allowed))
    of_rows = random.random((64, vocabulary)) < 0.3
    of_rows[:, 1] = True
    chosen = chosen_by_device(backend, logits, samplings, positions, of_rows)
    np.testing.assert_array_equal(chosen, sample(logits, samplings, positions, of_rows))
    chosen = chosen_by_device(backend, logits, [WARM], positions, allowed)  # for all rows
    np.testing.assert_array_equal(chosen, sample(logits, WARM, positions, allowed))


@pytest.mark.parametrize("vocabulary", [2, 300, 999, 4096, 50_257])
def test_log_probabilities_of_chosen_tokens(vocabulary):
    backend, random = engine("bf16"), np.random.default_rng(vocabulary)
    padded = (5 * random.standard_normal((64, vocabulary + 7))).astype(np.float32)
    tokens = random.integers(0, vocabulary, 64).astype(np.int32)
    logprobs = backend.zeros((64,))
    backend.score(backend.from_host(padded)[:, :vocabulary], backend.from_host(tokens), logprobs)
    exact = padded[:, :vocabulary].astype(np.float64)
    expected = exact[np.arange(64), tokens] - np.log(np.exp(exact).sum(axis=1))
    np.testing.assert_allclose(backend.to_host(logprobs), expected, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [300, 50_257])
def test_choices_one_behind_another_draw_one_number_each(vocabulary):
    """Recorded, so that each begins while the one before it still runs."""
    backend, steps = engine("bf16"), 40
    logits = np.random.default_rng(1).standard_normal((3, vocabulary)).astype(np.float32)
    settings = np.array([1.0, 1.0, 0, 0]).view(np.int64)
    settings[2] = WARM.seed
    on_device, allowed, settings = map(
        backend.from_host, (logits, np.ones(vocabulary, np.uint8), settings)
    )
    draws = backend.from_host(np.array([0, 7, 99]))
    chosen = [backend.from_host(np.zeros(3, np.int32)) for _ in range(steps + 1)]
    ring = backend.runtime.host_ring(chosen[0], steps + 3)

    def choose_all():
        for each in chosen[1:]:
            backend.choose(on_device, allowed, ChoiceRows(settings, draws, each, chosen[0]), ring)

    program = backend.runtime.program(choose_all)
    for run in range(3):
        program.run()
        for step, each in enumerate(chosen[1:]):
            positions = np.array([0, 7, 99]) + run * steps + step
            sampling = dataclasses.replace(WARM, temperature=1.0, top_k=0, top_p=1.0)
            expected = sample(logits, sampling, positions)
            np.testing.assert_array_equal(backend.to_host(each), expected)
            ring.expect()
            np.testing.assert_array_equal(ring.take(), expected)


@pytest.mark.parametrize("vocabulary", [70, 50_257])
def test_logits_that_are_no_numbers_are_refused(vocabulary):
    backend, logits = engine("bf16"), np.zeros((4, vocabulary), np.float32)
    allowed = np.arange(vocabulary) > 0
    logits[:, 0] = np.nan  # not allowed, so nobody minds
    logits[1, 5], logits[2, 6], logits[3] = np.nan, np.inf, -np.inf
    for sampling in (GREEDY, Sampling()):
        assert (
            chosen_by_device(backend, logits, [sampling] * 4, np.arange(4), allowed) < 0
        ).tolist() == [False, True, True, True]
    with pytest.raises(UserError, match=NOT_FINITE[:30]):
        check(-1)


def test_the_device_lays_out_and_keeps_what_the_specification_does():
    random, backend, reference = np.random.default_rng(1), engine("fp32"), ChoosingReference()
    for B, T, D, H, S in ((1, 2, 8, 0, 4), (1, 8, 768, 3, 1000), (300, 4, 104, 3, 90)):
        guessed = random.integers(0, 3, (B, H)).astype(np.int32)
        first, texts = random.integers(0, 3, B), random.integers(0, 3, (B, S))
        lengths, draws = random.integers(0, S - T, B), random.integers(0, 2**40, B)
        chosen = random.integers(-1, 3, (B, T)).astype(np.int32)
        x = random.standard_normal((B * T, D)).astype(np.float32)
        given = (each.astype(np.int32) for each in (first, guessed, texts, lengths))
        given, outputs = (*given, draws), []
        for ops in (backend, reference):
            a = [ops.from_host(each.copy(), each.dtype) for each in given]
            drafts = ops.zeros((B, T - 1), np.int32)
            laid_out = [ops.zeros((B, T), dtype) for dtype in (np.int32, np.int32, np.int64)]
            tokens, drafted, text, *counts = a
            rows = DraftRows(tokens, drafts, *counts)
            ops.lay_out_drafts(rows, drafted, text, *laid_out)
            behind = ops.from_host(chosen.copy(), np.int32)
            last = ops.zeros((B, D), np.float32)
            ops.accept_drafts(behind, ops.from_host(x, np.float32), rows, last)
            arrays = text, *laid_out, behind, *rows, last
            outputs.append([ops.to_host(array).copy() for array in arrays])
        for ours, theirs in zip(*outputs, strict=True):
            np.testing.assert_array_equal(ours, theirs)
