"""The GPT-2 family: its fields, and that its caches, heads and refinements are those of any."""

import numpy as np
import pytest
from slow_transformer import slow_gpt2_logits

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.refining import refine
from nanoeuler.model.spec import tensor_table, training_flops_per_token
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.check_form import check_form

FIELDS = {
    "family": "gpt2",
    "vocab_size": 300,
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 4,
    "ffn": 101,
    "context": 32,
    "mtp_heads": 3,
    "tied": True,
}


def config_of(**fields):
    return ModelConfig.from_dict(FIELDS | fields)


def model_of(engine, **fields):
    config = config_of(**fields)
    parameters = initial_parameters(config, 1)
    buffer = FlatBuffer(config, parameters)
    random = np.random.default_rng(2)
    for tensor in buffer.table:  # biases that are not 0, and wider weights than fresh ones
        buffer[tensor.name][...] += random.normal(0, 0.2, tensor.shape).astype(np.float32)
    return Transformer(config, engine.from_host(parameters), engine)


def test_a_model_is_a_llama_unless_it_says_otherwise():
    llama = ModelConfig.from_dict({"preset": "small"})
    assert ModelConfig.from_dict({"preset": "small", "family": "llama"}) == llama
    assert ModelConfig.from_dict(config_of().to_dict()) == config_of()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"family": "gpt3"}, "model.family is 'gpt3'; there are llama, gpt2"),
        ({"kv_heads": 2}, "model.kv_heads is 2, but model.family gpt2 has 4 here"),
        ({"head_size": 32}, "model.head_size is 32"),
        ({"qk_norm": "rms"}, "model.qk_norm is 'rms'"),
        ({"rope_theta": 500.0}, "model.rope_theta is 500.0"),
    ],
)
def test_fields_that_it_does_not_have_are_refused(fields, words):
    with pytest.raises(UserError, match=words):
        config_of(**fields)


def test_the_preset_is_padded_in_storage_only():
    config = ModelConfig.from_dict({"preset": "gpt2"})
    rows = {tensor.name: tensor for tensor in tensor_table(config)}
    embedding = rows["transformer.wte.weight"]
    assert (embedding.shape, embedding.storage_shape) == ((50_257, 768), (50_304, 768))
    # 6 per weight of the products (those of positions are none) and 12 · layers · dim per key
    products = sum(t.size for t in rows.values() if len(t.shape) == 2) - 1024 * 768
    expected = 6 * products + 12 * 12 * 768 * 1025 / 2
    assert training_flops_per_token(config, 1024) == pytest.approx(expected)


def test_fresh_biases_are_zero_and_outputs_of_layers_small():
    config = ModelConfig.from_dict({"preset": "gpt2-tiny"})
    buffer = FlatBuffer(config, initial_parameters(config, 1))
    for tensor in buffer.table:
        if tensor.name.endswith(".bias"):
            assert not buffer[tensor.name].any()
    output = buffer["transformer.h.0.mlp.c_proj.weight"].std()
    assert output == pytest.approx(0.02 / (2 * config.layers) ** 0.5, rel=0.02)


@pytest.mark.parametrize("fields", [{}, {"tied": False, "step_size": 0.5, "layers": 1}])
def test_the_cpu_trains_what_the_specification_says(fields):
    rows = list(check_form(CpuBackend(2), config_of(**fields)))
    assert all(row.passed for row in rows), max(rows, key=lambda row: row.error / row.limit)


@pytest.mark.parametrize(
    "fields", [{}, {"tied": False, "step_size": 0.5, "layers": 1}, {"norm_epsilon": 0.5}]
)
def test_logits_are_those_of_the_slow_transformer(fields):
    fields = {
        "dim": 12,
        "heads": 2,
        "kv_heads": 2,
        "ffn": 9,
        "vocab_size": 30,
        "context": 8,
    } | fields
    model = model_of(ReferenceBackend(np.float64), **fields)
    ids = np.random.default_rng(3).integers(0, 30, (2, 7)).astype(np.int32)
    positions = np.tile(np.arange(7, dtype=np.int32), (2, 1))
    buffers = model.forward(Batch(ids, positions, np.zeros_like(ids)), training=True)
    logits = model.heads.logits(model.weights.heads, buffers).reshape(2, 7, 3, 30)
    weights = FlatBuffer(model.config, model.parameters)
    tensors = {tensor.name: weights[tensor.name].tolist() for tensor in weights.table}
    expected = [slow_gpt2_logits(model.config, tensors, row) for row in ids.tolist()]
    # float64; sums are taken in another order
    np.testing.assert_allclose(logits, np.array(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("engine", [ReferenceBackend(), CpuBackend(1)], ids=["reference", "cpu"])
def test_reading_in_parts_gives_the_logits_of_reading_at_once(engine):
    model = model_of(engine)
    ids = np.random.default_rng(3).integers(0, 300, (2, 32)).astype(np.int32)
    positions = np.tile(np.arange(32, dtype=np.int32), (2, 1))
    whole = model.first_logits(
        model.forward(Batch(ids, positions, np.zeros_like(ids))).stream.normed
    ).reshape(2, 32, 300)
    cache, at = model.new_cache(2, 32), 0
    for count in (13, 1, 1, 5, 12):
        logits = extend(model, cache, ids[:, at : at + count], every=True)
        np.testing.assert_allclose(logits, whole[:, at : at + count], atol=2e-4)
        at += count
    with pytest.raises(ValueError, match="the cache holds 32 tokens"):
        extend(model, cache, ids[:, :1])


def test_positions_matter():
    model = model_of(ReferenceBackend())
    ids = np.full((1, 8), 7, np.int32)
    logits = extend(model, model.new_cache(1, 8), ids, every=True)[0]
    assert np.abs(logits[1:] - logits[0]).max() > 0.1


def test_a_refined_model_computes_nearly_the_same():
    coarse = model_of(ReferenceBackend(np.float64), step_size=0.001)
    finer = ModelConfig.from_dict(coarse.config.to_dict() | {"layers": 4, "step_size": 0.0005})
    fine = Transformer(finer, refine(coarse.config, coarse.parameters), coarse.backend)
    ids = np.arange(20, dtype=np.int32)[None]
    logits = [extend(model, model.new_cache(1, 20), ids, every=True) for model in (coarse, fine)]
    unchanged = model_of(coarse.backend, step_size=1e-12)
    moved = extend(unchanged, unchanged.new_cache(1, 20), ids, every=True) - logits[0]
    assert 0 < np.abs(logits[0] - logits[1]).max() < 0.02 * np.abs(moved).max()
