"""Decoding on the device: recording, running ahead, overlapping kernels and drafts change nothing
but the time."""

import dataclasses

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, Sampling
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


def engine(precision, **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision, **fields)


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
