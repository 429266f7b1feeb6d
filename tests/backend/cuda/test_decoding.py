"""Decoding on the device: the tokens that it chooses, and that recording, running ahead and
overlapping kernels change nothing but the time."""

import dataclasses

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, NOT_FINITE, Sampling, checked, choose
from nanoeuler.inference.speculation import DeviceSpeculation
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from tests.models import chain, cycle

pytestmark = pytest.mark.gpu
ODD = ModelConfig(
    vocab_size=300,
    dim=96,
    layers=3,
    heads=6,
    kv_heads=2,
    ffn=341,
    context=48,
    head_size=32,
    mtp_heads=2,
)
NORMED = dataclasses.replace(ODD, qk_norm="weighted")
GPT2 = dataclasses.replace(ODD, family="gpt2", heads=3, kv_heads=3)
CONFIGS = [ODD, NORMED, GPT2]
NAMES = ["plain", "norms of heads", "GPT-2"]
WARM = Sampling(temperature=1.0, top_p=0.9, seed=3)
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


def engine(precision, **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision, **fields)


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
    backend.choose(
        backend.from_host(logits),
        backend.from_host(allowed.astype(np.uint8)),
        settings,
        draws,
        chosen,
        tokens,
        lengths,
    )
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
        np.testing.assert_array_equal(chosen, choose(logits, samplings, positions, allowed))
    chosen = chosen_by_device(backend, logits, [WARM], positions, allowed)  # for all rows
    np.testing.assert_array_equal(chosen, choose(logits, WARM, positions, allowed))


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

    def choose_all():
        for each in chosen[1:]:
            backend.choose(on_device, allowed, settings, draws, each, chosen[0], None)

    program = backend.program(choose_all)
    for run in range(3):
        program.run()
        for step, each in enumerate(chosen[1:]):
            positions = np.array([0, 7, 99]) + run * steps + step
            sampling = dataclasses.replace(WARM, temperature=1.0, top_k=0, top_p=1.0)
            expected = choose(logits, sampling, positions)
            np.testing.assert_array_equal(backend.to_host(each), expected)


PROMPTED = dataclasses.replace(ODD, dim=128, heads=4, ffn=192, head_size=64, context=700)


def test_prompts_have_kernels_of_their_own():
    backend = engine("bf16")
    model = Transformer(PROMPTED, backend.from_host(initial_parameters(PROMPTED, 1)), backend)
    forms = [block.form for block in model.blocks]
    hopper = backend.has_clusters
    assert backend.fuses_prompts(forms, 128, 2, 300) == hopper
    assert not backend.fuses_prompts(forms, 128, 1, 8)  # new tokens are decoded
    assert not backend.fuses_prompts(forms, 128, 7, 300)
    assert not backend.fuses_prompts(forms, 96, 1, 300)
    assert not engine("bf16", portable=True).fuses_prompts(forms, 128, 1, 300)
    assert not engine("fp32").fuses_prompts(forms, 128, 1, 300)


@pytest.mark.parametrize("config", [PROMPTED, dataclasses.replace(PROMPTED, qk_norm="weighted")])
@pytest.mark.parametrize(("rows", "length"), [(1, 200), (3, 100), (7, 100), (30, 60), (90, 20)])
def test_behind_a_prompt_the_last_layer_computes_last_tokens_alone(config, rows, length):
    backend = engine("bf16")
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    random = np.random.default_rng(3)
    tokens = random.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    counts = length - np.arange(rows, dtype=np.int32) % 9
    caches = [model.new_cache(rows, 2 * length) for _ in range(2)]
    for _ in range(2):
        every = backend.to_host(model.extend(caches[0], tokens, counts, every=True))
        last = backend.to_host(model.extend(caches[1], tokens, counts))
        expected = every.reshape(rows, length, -1)[np.arange(rows), counts - 1]
        # each result is rounded to 8 bits
        assert np.linalg.norm(last - expected) < 0.01 * np.linalg.norm(expected)
        for row in range(rows):  # slots behind those of the row's tokens have no meaning
            ends = slice(0, caches[0].lengths[row])
            bits = [cache.memory.all_bits[:, row, ends] for cache in caches]
            assert (bits[0] == bits[1]).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_padding_of_prompts_and_the_room_of_a_cache_change_no_bit(rows):
    backend = engine("bf16")
    model = Transformer(PROMPTED, backend.from_host(initial_parameters(PROMPTED, 1)), backend)
    random = np.random.default_rng(2)
    tokens = random.integers(0, PROMPTED.vocab_size, (rows, 230)).astype(np.int32)
    counts = np.array([203, 70, 9][:rows], np.int32)

    def read(length, room):
        cache = model.new_cache(rows, room)
        first = model.extend(cache, tokens[:, :length], counts)
        behind = model.extend(cache, tokens[:, :16], np.full(rows, 12))
        return [backend.to_host(each) for each in (first, behind)]

    expected = read(203, 230)
    for length, room in ((203, 700), (210, 700), (230, 500)):
        for found, known in zip(read(length, room), expected, strict=True):
            np.testing.assert_array_equal(found, known)


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
        checked(np.array([3, -1]))


def written(backend, sampling, prompts, max_tokens=70, config=ODD):
    """What a model of random weights writes, far past its context."""
    model = Transformer(
        config, backend.from_host(np.float32(4) * initial_parameters(config, 1)), backend
    )
    allowed = np.arange(config.vocab_size) < config.vocab_size - 7
    decoding = Decoding(
        model, prompts, sampling, max_tokens, 0, allowed, 100 * np.arange(len(prompts))
    )
    while decoding.step():
        pass
    return decoding.continuations


def prompts(count):
    random = np.random.default_rng(1)
    return [random.integers(1, 290, length).tolist() for length in random.integers(1, 40, count)]


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_in_float32_a_model_writes_what_the_specification_writes(config, sampling, rows):
    expected = written(ReferenceBackend(), sampling, prompts(rows), config=config)
    assert written(engine("fp32"), sampling, prompts(rows), config=config) == expected
    assert any(each.dropped for each in expected)


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_graphs_and_overlapping_kernels_change_nothing(config):
    texts = []
    for graphs, overlaps in ((True, True), (True, True), (False, True), (True, False)):
        backend = engine("bf16", graphs=graphs)
        backend.kernels.overlaps &= overlaps
        texts.append(
            [written(backend, WARM, prompts(rows), config=config) for rows in (1, 5, 20, 64)]
        )
    assert texts[1:] == texts[:1] * 3


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_a_prompt_read_at_once_and_in_parts_leaves_the_same_cache_but_for_rounding(config):
    """By the composed ops, and by the kernels of many and of few rows."""
    backend = engine("bf16")
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    tokens = np.random.default_rng(2).integers(1, 290, (3, 40)).astype(np.int32)
    logits = []
    for parts in ([40], [25, 15], [30, 3, 7], [38, 1, 1]):
        cache, start = model.new_cache(3, 48), 0
        for length in parts:
            found = model.extend(cache, tokens[:, start : start + length])
            start += length
        logits.append(backend.to_host(found))
    for other in logits[1:]:
        # of three layers, each result rounded to 8 bits
        error = np.linalg.norm(other - logits[0]) / np.linalg.norm(logits[0])
        assert error < 0.02


def test_decoding_takes_no_memory_after_the_second_token():
    import cupy

    backend = engine("bf16")
    model = Transformer(ODD, backend.from_host(initial_parameters(ODD, 1)), backend)
    decoding = Decoding(model, [[1, 2, 3], [4, 5]], WARM, 30, 0, np.arange(ODD.vocab_size) > 0, 0)
    used = []
    for _ in range(
        30
    ):  # within the context: a window that slides reads its rows again, in buffers of their own
        decoding.step()
        used.append(cupy.get_default_memory_pool().used_bytes())
    assert len(set(used[3:])) == 1


def test_recorded_work_keeps_its_memory_when_more_rows_take_more():
    expected = written(engine("bf16"), WARM, prompts(1))
    backend = engine("bf16")
    model = Transformer(ODD, backend.from_host(np.float32(4) * initial_parameters(ODD, 1)), backend)
    allowed = np.arange(ODD.vocab_size) < ODD.vocab_size - 7
    few = Decoding(model, prompts(1), WARM, 70, 0, allowed, np.zeros(1, int))
    for _ in range(5):  # its step is a graph by now
        few.step()
    many = Decoding(model, prompts(9), WARM, 70, 0, allowed, 100 * np.arange(9))
    while many.step():
        few.step()
    while few.step():
        pass
    assert few.continuations == expected


def test_a_cache_that_is_gone_leaves_its_memory_and_its_graphs_to_the_next():
    backend = engine("bf16")
    model = Transformer(ODD, backend.from_host(initial_parameters(ODD, 1)), backend)
    cache = model.new_cache(2, 40)
    memory = cache.memory
    assert model.new_cache(2, 40).memory is not memory
    cache.remove(0)
    del cache
    again = model.new_cache(2, 41)  # rounded up, they are of one size
    assert again.memory is memory
    assert (len(again.lengths), again.capacity) == (2, 41)


# ---- drafts


def drafted(backend, sampling, prompts, kind, max_tokens=90, drafts=True):
    """What a model writes some of whose drafts are right, and the tokens of a pass."""
    model = chain(backend, cycle(40, 0.2), noise=0.5, mixing=1.0, dim=64, **kind)
    speculation = DeviceSpeculation(4, 0.0) if drafts else None
    positions, allowed = 100 * np.arange(len(prompts)), np.arange(40) > 2
    decoding = Decoding(model, prompts, sampling, max_tokens, -1, allowed, positions, speculation)
    while decoding.step():
        pass
    return decoding.continuations, speculation.tokens_per_pass if speculation else 1.0


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("kind", [{}, {"qk_norm": "weighted"}, {"family": "gpt2"}], ids=NAMES)
def test_drafts_change_no_token_in_float32(kind, rows, sampling):
    starts = [[3 + row] * (1 + 4 * row) for row in range(rows)]
    expected, _ = drafted(ReferenceBackend(), sampling, starts, kind, drafts=False)
    found, tokens_per_pass = drafted(engine("fp32"), sampling, starts, kind)
    assert found == expected
    # rows that slide one after another leave the others little room for drafts
    assert tokens_per_pass > 1.2 or rows > 1
    assert all(each.dropped for each in expected)


@pytest.mark.parametrize(
    "kind", [{"kv_heads": 4}, {"kv_heads": 4, "qk_norm": "rms"}, {"family": "gpt2"}], ids=NAMES
)
def test_a_pass_over_drafts_has_the_bits_of_plain_decoding(kind):
    """A row's 210 sampled tokens in bf16, at the widths of `base`, with and without drafts.

    With those alone the cache would be shorter, and its keys would be divided otherwise."""
    sizes = {"dim": 768, "heads": 12, "kv_heads": 12, "ffn": 2048, "layers": 3, "vocab_size": 999}
    config = ModelConfig.from_dict(sizes | {"context": 400, "mtp_heads": 4} | kind)
    backend = engine("bf16")
    model = Transformer(config, backend.from_host(3 * initial_parameters(config, 1)), backend)
    allowed, prompt, texts = np.ones(999, bool), [*range(20), *range(20)], []
    speculation = DeviceSpeculation(4, -1.0, backend.drafted_tokens - 1)  # which always pays
    for drafts in (None, speculation):
        decoding = Decoding(model, [prompt], WARM, 210, -1, allowed, 0, drafts)
        while decoding.step():
            pass
        texts.append(decoding.continuations[0].ids)
    assert texts[0] == texts[1]
    assert sum(speculation.drafted) > 300  # passes by heads: most of them


@pytest.mark.parametrize("kind", [{}, {"qk_norm": "rms"}, {"family": "gpt2"}], ids=NAMES)
def test_graphs_and_overlapping_kernels_change_nothing_with_drafts(kind):
    texts = []
    for graphs, overlaps in ((True, True), (True, True), (False, True), (True, False)):
        backend = engine("bf16", graphs=graphs)
        backend.kernels.overlaps &= overlaps
        texts.append([drafted(backend, WARM, [[5]] * rows, kind) for rows in (1, 2)])
    assert texts[1:] == texts[:1] * 3
    assert texts[0][0][1] > 1.1


def test_the_device_lays_out_and_keeps_what_the_specification_does():
    random, backend, reference = np.random.default_rng(1), engine("fp32"), ReferenceBackend()
    for B, T, D, H, S in ((1, 2, 8, 0, 4), (1, 8, 768, 3, 1000), (300, 4, 104, 3, 90)):
        drafted = random.integers(0, 3, (B, H)).astype(np.int32)
        tokens, text = random.integers(0, 3, B), random.integers(0, 3, (B, S))
        lengths, draws = random.integers(0, S - T, B), random.integers(0, 2**40, B)
        chosen = random.integers(-1, 3, (B, T)).astype(np.int32)
        x = random.standard_normal((B * T, D)).astype(np.float32)
        given = (each.astype(np.int32) for each in (tokens, drafted, text, lengths))
        given, outputs = (*given, draws), []
        for ops in (backend, reference):
            a = [ops.from_host(each.copy(), each.dtype) for each in given]
            drafts = ops.zeros((B, T - 1), np.int32)
            laid_out = [ops.zeros((B, T), dtype) for dtype in (np.int32, np.int32, np.int64)]
            ops.lay_out_drafts(*a, drafts, *laid_out)
            behind = ops.from_host(chosen.copy(), np.int32)
            last, kept = ops.zeros((B, D), np.float32), (a[0], a[3], a[4])
            ops.keep_right(behind, drafts, ops.from_host(x, np.float32), *kept, last)
            arrays = a[2], drafts, *laid_out, behind, *kept, last
            outputs.append([ops.to_host(array).copy() for array in arrays])
        for ours, theirs in zip(*outputs, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_drafts_take_no_memory_after_the_second_pass():
    import cupy

    backend = engine("bf16")
    model = chain(backend, cycle(40, 0.2), noise=0.5, mixing=1.0, dim=64, context=400)
    allowed, speculation = np.arange(40) > 2, DeviceSpeculation(4, 0.0)
    decoding = Decoding(model, [[5, 6, 7]], WARM, 300, -1, allowed, 0, speculation)
    used = []
    for _ in range(30):
        decoding.step()
        used.append(cupy.get_default_memory_pool().used_bytes())
    assert len(set(used[4:])) == 1
