"""Caches of bytes: keys and values as codes, with a scale for each head's row."""

from dataclasses import replace

import numpy as np
import pytest

from nanoeuler.backend.cached import rounded_rows, row_bytes, rows_in_floats
from nanoeuler.backend.cpu import cached
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from tests.models import model_in

FIELDS = {"dim": 64, "layers": 2, "heads": 4, "ffn": 75, "context": 48, "vocab_size": 300}
LLAMA = FIELDS | {"kv_heads": 2, "mtp_heads": 1}
SHAPES = {
    "Llama": LLAMA,
    "heads of 18, no whole words": LLAMA | {"head_size": 18, "qk_norm": "weighted"},
    "a window, block by block": LLAMA | {"windows": [9, 0]},
    "GPT-2": FIELDS | {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "tied": True},
}
NEAR = 0.02
"""Of logits with rounded keys and values to those without."""


def close(found, expected, bound):
    return 0 < np.linalg.norm(found - expected) < bound * np.linalg.norm(expected)


@pytest.fixture(params=SHAPES)
def models(request):
    """The reference and the CPU with caches of bytes, and the reference without."""
    config = ModelConfig.from_dict(SHAPES[request.param])
    parameters = initial_parameters(config, 1)
    parameters[parameters != 1] *= 6  # by which tokens depend on each other
    reference, cpu = ReferenceBackend(np.float32), CpuBackend(1)
    made = (Transformer(config, parameters, each, byte_cache=True) for each in (reference, cpu))
    return *made, Transformer(config, parameters, reference)


def read(model, ids, prompt=30):
    """Logits behind each token: a prompt, then steps."""
    cache = model.new_cache(len(ids), 48)
    steps = [ids[:, :prompt], *np.split(ids[:, prompt:], ids.shape[1] - prompt, axis=1)]
    return np.concatenate([extend(model, cache, step, every=True) for step in steps], axis=1)


def test_a_row_is_whole_numbers_with_the_scale_of_its_largest():
    x = np.array([[1.0, -2.54, 0.015, 0.0, 0.2], [0, 0, 0, 0, 0]], np.float32)
    rows = rounded_rows(x)
    assert rows.shape == (2, 12) == (2, row_bytes(5))
    assert rows[0, :5].tolist() == [50, -127, 1, 0, 10]
    np.testing.assert_allclose(rows_in_floats(rows, 5)[0], [1, -2.54, 0.02, 0, 0.2], rtol=1e-6)
    assert not rows[1].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(value):
    x = np.array([1.0, 2.0, value, 3.0], np.float32)
    by_the_cpu = np.zeros(row_bytes(4), np.int8)
    cached.round_row(x, by_the_cpu, 0)
    for row in (rounded_rows(x), by_the_cpu):
        assert not np.isfinite(rows_in_floats(row, 4)).any()


def test_the_cpu_reads_and_writes_what_the_reference_does(models):
    reference, cpu, exact = models
    ids = (np.arange(80, dtype=np.int32) * 7 % 300).reshape(2, 40)
    expected = read(exact, ids)
    found = read(cpu, ids)
    assert close(found, expected, NEAR)
    # a number in the middle between two codes may fall on either side
    assert np.linalg.norm(found - read(reference, ids)) < 0.3 * np.linalg.norm(found - expected)


def test_the_cpus_rows_are_those_of_the_specification():
    config = ModelConfig.from_dict(LLAMA | {"layers": 1, "head_size": 18})
    parameters = initial_parameters(config, 1)
    ids = np.array([[5, 6, 7]])
    kept = {}
    for in_bytes in (False, True):
        model = Transformer(config, parameters, CpuBackend(1), byte_cache=in_bytes)
        cache = model.new_cache(1, 8)
        for token in ids[0]:
            extend(model, cache, np.array([[token]]))
        kept[in_bytes] = cache.memory.all_bits[:, 0, :3]
    floats = kept[False].view(np.float32)
    assert np.array_equal(kept[True].view(np.int8), rounded_rows(floats))


def test_drafts_have_the_bits_of_single_tokens(models):
    model = models[1]
    ids = (np.arange(80, dtype=np.int32) * 7 % 300).reshape(2, 40)
    caches = [model.new_cache(2, 48) for _ in range(2)]
    for cache in caches:
        extend(model, cache, ids[:, :32])
    together = extend(model, caches[0], ids[:, 32:36], every=True)
    alone = [extend(model, caches[1], ids[:, [t]]) for t in range(32, 36)]
    fused = model.backend.fuses(model.forms, 2, 4)
    bound = 0 if fused else 1e-4
    assert np.abs(together - np.stack(alone, axis=1)).max() <= bound


def test_a_row_that_joins_takes_its_bytes_along():
    config = ModelConfig.from_dict(LLAMA)
    model = Transformer(config, initial_parameters(config, 1), CpuBackend(1), byte_cache=True)
    ids = np.arange(20, dtype=np.int32)[None]
    alone, batch = model.new_cache(1, 48), model.new_cache(3, 48)
    extend(model, alone, ids)
    batch.lengths = batch.lengths[:0]
    batch.join(alone)
    found, expected = (extend(model, each, ids[:, :1]) for each in (batch, alone))
    assert np.array_equal(found, expected)


def test_it_takes_a_quarter_of_the_memory():
    config = replace(ModelConfig.from_dict(LLAMA), head_size=64)
    sizes = [
        Transformer(config, initial_parameters(config, 1), CpuBackend(1), byte_cache=each)
        .new_cache(2, 48)
        .memory.all_bits.nbytes
        for each in (False, True)
    ]
    assert sizes[1] / sizes[0] == 68 / 256


# ---- for users


@pytest.fixture
def folder(tmp_path):
    return model_in(tmp_path / "model", LLAMA, "alpaca")


def test_a_reply_is_the_same_with_and_without_drafts(folder, command):
    words = "generate", folder, "The ferry", "--kv-cache", "int8", "--max-tokens", "40"
    texts = [command(*words, *more)[1] for more in ((), ("--no-speculation",))]
    assert texts[0] == texts[1] != ""
    model = api.load(folder, "cpu", kv_cache="int8")
    assert model.transformer.new_cache(1, 8).memory.all_bits.itemsize == 1


def test_what_cannot_be_kept(folder, monkeypatch):
    with pytest.raises(UserError, match="kv_cache int4: it must be int8, or left out"):
        api.load(folder, "cpu", kv_cache="int4")
    monkeypatch.setattr(CpuBackend, "reads_codes", False)
    with pytest.raises(UserError, match="kv_cache int8: the engine cpu computes with floats"):
        api.load(folder, "cpu", kv_cache="int8")
