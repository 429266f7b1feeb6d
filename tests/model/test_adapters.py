"""Adapters of low rank: what they compute, what is trained, and what they are merged into."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.backend.adapted_ops import AdaptedOps
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.primitives import Primitives
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.adapters import adapted, merge
from nanoeuler.model.appending import extend
from nanoeuler.model.checks.model_gradients import check_model
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, apart, initial_parameters
from nanoeuler.model.spec import (
    parameter_count,
    tensor_table,
    trained_part,
    trained_table,
    training_flops,
)
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.check_form import check_form, check_small_model, small_form
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.lion import Lion
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.optimizer.optimizer import state_bytes
from nanoeuler.training.streams import dropout_seeds
from tests import models

LLAMA = ModelConfig.from_dict(models.ODD | {"vocab_size": 301, "qk_norm": "weighted"})
GPT2 = ModelConfig.from_dict(models.GPT2 | {"mtp_heads": 1})
RELU2 = ModelConfig.from_dict(models.LLAMA | {"activation": "relu2"})


def wanted(rank=3, alpha=None, targets="all", dropout=0.0):
    return SimpleNamespace(rank=rank, alpha=alpha, targets=targets, dropout=dropout)


def spread(config):
    """Parameters of which no adapter is 0."""
    parameters = initial_parameters(config, 1) * np.float32(4)
    part = parameters[trained_part(config)]
    buffer = FlatBuffer(config, part)
    random = np.random.default_rng(2)
    for name in buffer.rows:
        buffer[name][...] = random.standard_normal(buffer[name].shape) * 0.1
    return parameters


def merged(config, parameters):
    whole, trained = apart(config, parameters)
    whole = whole.copy()
    merge(config, whole, trained)
    return replace(config, lora=None), whole


def logits(config, parameters, engine, seeds=None):
    model = Transformer(config, engine.from_host(parameters), engine)
    ids = np.random.default_rng(3).integers(0, config.vocab_size, (2, 19)).astype(np.int32)
    batch = Batch.of_documents(ids, engine)
    batch.seeds = seeds
    buffers = model.forward(batch, training=True)
    return model.heads.logits(model.weights.heads, buffers).copy()


@pytest.mark.parametrize("engine", [ReferenceBackend(), CpuBackend(1), CpuBackend(2)])
@pytest.mark.parametrize("base", [LLAMA, GPT2, RELU2], ids=["llama", "gpt2", "relu2"])
def test_fresh_adapters_change_no_bit(base, engine):
    config = adapted(base, wanted(dropout=0.3))
    before, after = initial_parameters(base, 1), initial_parameters(config, 1)
    assert before.tobytes() == after[: len(before)].tobytes()
    seeds = dropout_seeds(1, "sft", 0, (2, 19))
    found = logits(config, after, engine, seeds)
    assert np.array_equal(found, logits(base, before, engine))
    buffer = FlatBuffer(config, after)
    for name in FlatBuffer(config, after[trained_part(config)]).rows:
        assert buffer[name].any() == name.endswith("lora_A.weight")


@pytest.mark.parametrize("targets", ["all", ["q_proj", "v_proj"], ["gate_proj", "down_proj"]])
def test_a_merged_model_computes_the_same(targets):
    config, engine = adapted(LLAMA, wanted(5, 7.0, targets)), ReferenceBackend(np.float64)
    parameters = spread(config).astype(np.float64)
    found = logits(config, parameters, engine)
    base, whole = merged(config, parameters)
    assert base == LLAMA
    np.testing.assert_allclose(logits(base, whole, engine), found, rtol=1e-12, atol=1e-12)
    plain = parameters[: len(whole)]
    assert np.abs(logits(base, plain, engine) - found).max() > 0.01


def test_merging_rounds_products_and_sums_one_after_the_other():
    config = adapted(LLAMA, wanted(5, 10.0))
    parameters = spread(config)
    _, whole = merged(config, parameters)
    module = "model.layers.0.mlp.down_proj"
    adapters = FlatBuffer(config, parameters[trained_part(config)])
    up, down = (adapters.in_file(f"{module}.lora_{part}.weight") for part in "BA")
    change = np.zeros((len(up), down.shape[1]), np.float32)
    for r in range(5):
        change += up[:, r, None] * down[r]
    before, after = (
        FlatBuffer(LLAMA, each)[f"{module}.weight"] for each in (parameters[: len(whole)], whole)
    )
    assert np.array_equal(after, before + 2 * change)


def test_what_is_trained_is_the_tail_of_the_table():
    config = adapted(LLAMA, wanted(2, targets=["q_proj", "down_proj"]))
    table, base = tensor_table(config), tensor_table(LLAMA)
    assert [replace(tensor, trained=True) for tensor in table[: len(base)]] == list(base)
    assert not any(tensor.trained for tensor in table[: len(base)])
    names = [tensor.name for tensor in table[len(base) :]]
    assert names[:4] == [
        f"model.layers.0.{module}.lora_{part}.weight"
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for part in "AB"
    ]
    assert [tensor.name for tensor in trained_table(config)] == names
    assert trained_table(LLAMA) == tensor_table(LLAMA)
    size = 2 * (48 + 48) + 2 * (50 + 48)
    assert parameter_count(config) == parameter_count(LLAMA) + LLAMA.layers * size
    whole, few = (state_bytes(each, AdamW) for each in (LLAMA, config))
    assert few < whole / 3
    assert 2 / 3 < training_flops(config, 9, 9, 9) / training_flops(LLAMA, 9, 9, 9) < 1


def test_a_buffer_of_gradients_has_no_frozen_tensor():
    config = adapted(LLAMA, wanted())
    buffer = FlatBuffer(config, np.zeros(FlatBuffer.trained_elements(config)))
    name = "model.layers.1.self_attn.k_proj"
    assert buffer[f"{name}.weight"] is None
    assert buffer.packed(f"{name}.weight") is None
    assert buffer[f"{name}.lora_A.weight"].shape == (3, 48)
    assert buffer.in_file(f"{name}.lora_B.weight").shape == (16, 3)
    with pytest.raises(KeyError):
        buffer["model.layers.1.self_attn.unknown.weight"]


@pytest.mark.parametrize("optimizer", [AdamW(), Muon(0.95, AdamW()), Lion(AdamW())])
@pytest.mark.parametrize("base", [LLAMA, GPT2, RELU2], ids=["llama", "gpt2", "relu2"])
def test_the_cpu_engine_computes_what_the_specification_says(base, optimizer):
    config = adapted(base, wanted(3, targets="all"))
    rows = list(check_form(CpuBackend(2), config, optimizer, recompute=True))
    assert [row for row in rows if not row.passed] == []
    assert any("lora_B" in row.tensor for row in rows)


def test_a_text_that_is_read_from_a_cache_meets_the_adapters_too():
    config = adapted(LLAMA, wanted())
    parameters, engine = spread(config), CpuBackend(1)
    ids = np.arange(12, dtype=np.int32)[None] % 300
    model = Transformer(config, engine.from_host(parameters), engine)
    cache = model.new_cache(1, 12)
    extend(model, cache, ids[:, :7])
    found = [extend(model, cache, ids[:, at : at + 1])[0] for at in range(7, 12)]
    exact = ReferenceBackend(np.float64)
    base, whole = merged(config, parameters.astype(np.float64))
    expected = Transformer(base, whole, exact)
    every = extend(expected, expected.new_cache(1, 12), ids, every=True)[0]
    np.testing.assert_allclose(found, every[7:], rtol=1e-4, atol=1e-5)


def test_no_fused_op_meets_a_matrix_with_adapters():
    """All ops that take a matrix of a block are made of products again, new ones too."""
    matrices = {"weight_OI", "weight_DI", "weight_DF", "weight_FI", "dweight_OI"}
    ops = {name: op for name, op in (vars(Primitives) | vars(Backend)).items() if callable(op)}
    taking = {
        name for name, op in ops.items() if matrices & inspect.signature(op).parameters.keys()
    }
    assert {"linear", "euler_step", "linear_swiglu_backward"} < taking
    assert taking <= vars(AdaptedOps).keys()


# ---- dropout


def test_dropout_leaves_out_a_share_and_repeats_itself():
    ops, x_NI = ReferenceBackend(), np.ones((64, 500), np.float32)
    seeds_N, out_NI, again_NI = dropout_seeds(1, "sft", 4, (64,)), x_NI.copy(), x_NI.copy()
    ops.dropout(x_NI, seeds_N, 3, 0.3, out_NI)
    assert set(np.unique(out_NI)) == {0, 1}
    # 32,000 draws: 0.3 ± 4 · 0.0026
    assert abs((out_NI == 0).mean() - 0.3) < 0.0103
    ops.dropout(again_NI, seeds_N, 3, 0.3, again_NI)
    assert np.array_equal(out_NI, again_NI)
    ops.dropout(x_NI[5:9], seeds_N[5:9], 3, 0.3, again_NI[5:9])
    assert np.array_equal(out_NI, again_NI), "the mask of a row depends on its seed alone"
    ops.dropout(x_NI, seeds_N, 4, 0.3, again_NI)
    assert abs((again_NI == out_NI).mean() - 0.58) < 0.012  # 0.3² + 0.7²: independent
    # no two rows or columns are alike more often than chance: 0.58 ± 5 · 0.5 / √500 and √64
    same = (out_NI[:, None] == out_NI).mean(axis=2)[np.triu_indices(64, 1)]
    assert abs(same - 0.58).max() < 0.12


def test_seeds_of_dropout_are_those_of_a_step_and_a_row():
    one = dropout_seeds(1, "sft", 4, (6, 9))
    assert np.array_equal(one[:2], dropout_seeds(1, "sft", 4, (2, 9))), "of rows from the first on"
    for other in [(2, "sft", 4), (1, "dpo", 4), (1, "sft", 5)]:
        assert (dropout_seeds(*other, (6, 9)) == one).mean() < 0.05


def test_nothing_is_dropped_where_there_are_no_seeds():
    config, engine = adapted(LLAMA, wanted(dropout=0.5)), CpuBackend(1)
    parameters = spread(config)
    whole = logits(config, parameters, engine)
    dropped = logits(config, parameters, engine, dropout_seeds(1, "sft", 0, (2, 19)))
    assert np.abs(whole - dropped).max() > 0.01
    plain = adapted(LLAMA, wanted())
    assert np.array_equal(whole, logits(plain, parameters, engine))


# ---- planted mistakes

CASES = [
    "adapters of all matrices, two documents a row",
    "adapters of some matrices, whose inputs are dropped",
    "adapters of a GPT-2, whose inputs are dropped",
]


def without_scale(self, weight):
    return 1.0


def dropping_without_scale(self, weight):
    return weight.scale


def seeing_all(self, x_NI, weight):
    return x_NI


def through_the_base_alone(self, dout_NO, weight, dx_NI, scale=1.0):
    matrix = getattr(weight, "weight_OI", weight)
    self.plain.linear_backward_input(dout_NO, matrix, dx_NI, scale)


def without_step(self, dout, x, dweight, accumulate, scale):
    self.plain.linear_backward_weight(dout, x, dweight, accumulate=accumulate)


def overwritten(self, dout, x, dweight, accumulate, scale):
    self.plain.linear_backward_weight(dout, x, dweight, accumulate=False, scale=scale)


@pytest.mark.parametrize(
    ("method", "mistake", "seen"),
    [
        ("factor", without_scale, CASES),
        ("factor", dropping_without_scale, CASES[1:]),
        ("dropped", seeing_all, CASES[1:]),
        ("linear_backward_input", through_the_base_alone, CASES),
        ("add_gradient", without_step, CASES),
    ],
)
def test_a_planted_mistake_of_the_backward_pass_is_seen(monkeypatch, method, mistake, seen):
    right = getattr(AdaptedOps, method)

    def planted(self, *arguments, **keywords):
        chosen = mistake if backward else right
        return chosen(self, *arguments, **keywords)

    backward = False
    plain = Transformer.backward_blocks

    def noted(self, *arguments, **keywords):
        nonlocal backward
        backward = True
        plain(self, *arguments, **keywords)
        backward = False

    monkeypatch.setattr(Transformer, "backward_blocks", noted)
    monkeypatch.setattr(AdaptedOps, method, planted)
    for case in CASES:
        wrong = [row for row in check_model(case) if not row.passed]
        assert bool(wrong) == (case in seen), case


def test_micro_batches_that_overwrite_gradients_are_seen(monkeypatch):
    config = small_form(adapted(LLAMA, wanted()))
    assert all(row.passed for row in check_small_model(CpuBackend(1), config, recompute=False))
    monkeypatch.setattr(AdaptedOps, "add_gradient", overwritten)
    rows = list(check_small_model(CpuBackend(1), config, recompute=False))
    assert any("lora_A" in row.tensor for row in rows if not row.passed)


# ---- refusals


@pytest.mark.parametrize(
    ("base", "fields", "said"),
    [
        (LLAMA, {"rank": 0}, "lora.rank is 0: it must be a whole number from 1 on"),
        (LLAMA, {"rank": 49}, "lora.rank is 49, above model.dim = 48"),
        (LLAMA, {"alpha": 0.0}, "lora.alpha is 0.0: it must be a number above 0"),
        (LLAMA, {"dropout": 1.0}, "lora.dropout is 1.0: it must be from 0 to below 1"),
        (LLAMA, {"dropout": -0.1}, "lora.dropout is -0.1: it must be from 0 to below 1"),
        (LLAMA, {"targets": ["query"]}, "lora.targets has 'query', and the blocks of this model"),
        (LLAMA, {"targets": "c_attn"}, "have q_proj, k_proj, v_proj, o_proj, gate_proj"),
        (GPT2, {"targets": ["q_proj"]}, "have c_attn, c_proj, c_fc; name some"),
        (RELU2, {"targets": ["gate_proj"]}, "lora.targets has 'gate_proj'"),
        (LLAMA, {"targets": []}, "lora.targets is empty"),
    ],
)
def test_adapters_that_a_model_cannot_have_are_refused(base, fields, said):
    with pytest.raises(UserError) as refused:
        adapted(base, wanted(**fields))
    assert said in str(refused.value)


def test_the_fields_of_a_checkpoint_are_read_back():
    config = adapted(LLAMA, wanted(4, targets=["v_proj", "q_proj"], dropout=0.25))
    assert config.lora.targets == ("q_proj", "v_proj")
    assert config.lora.alpha == 8
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert "lora" not in LLAMA.to_dict()
    with pytest.raises(UserError, match=r"lora is .*it has other keys"):
        ModelConfig.from_dict(LLAMA.to_dict() | {"lora": {"rank": 2}})
