"""Training in fp8: equal bits on resume, the start check, planted mistakes."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.training.check_form import (
    ADAMW,
    check_form,
    small_form,
    source_rows,
    spread_parameters,
)
from nanoeuler.training.state import TrainingState

pytestmark = pytest.mark.gpu
CONFIG = ModelConfig.from_dict({"preset": "base", "layers": 1, "mtp_heads": 2})


def engine(precision="fp8", **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision, **fields)


SMALL = {"preset": "small", "ffn": 512}
GPT2 = {"preset": "gpt2-tiny"}


def trained(backend, steps, start=None, fields=SMALL):
    """A small model after some steps, from a checkpoint's tensors and scales."""
    config = ModelConfig.from_dict(fields)
    state = TrainingState(
        config, backend, spread_parameters(config, np.random.default_rng(3)), ADAMW
    )
    if start:
        state.load(start.tensors, start.step)
        backend.runtime.scales = start.scales
    stream = source_rows(config, 32, 128, seed=5)
    while state.step < steps:
        state.train_step(stream.rows(state.step), 32, 1e-3)
    return SimpleNamespace(tensors=state.tensors(), scales=backend.runtime.scales, step=state.step)


def digest(end):
    return hashlib.sha256(b"".join(x.tobytes() for x in end.tensors.values())).hexdigest()


@pytest.mark.parametrize("fields", [SMALL, GPT2])
def test_a_resumed_run_ends_with_equal_bits(fields):
    whole, half = (trained(engine(), steps, fields=fields) for steps in (6, 3))
    assert digest(trained(engine(), 6, half, fields)) == digest(whole)
    half.scales = {}  # and would not without them
    assert digest(trained(engine(), 6, half, fields)) != digest(whole)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_step_with_a_number_that_is_not_finite_changes_nothing_and_says_so(value):
    """A saturated infinity would be a number like any other, and the step would pass."""
    backend = engine()
    state = TrainingState(CONFIG, backend, initial_parameters(CONFIG, 1), ADAMW)
    stream = source_rows(CONFIG, 16, 512, seed=5)
    for step in range(3):
        assert state.train_step(stream.rows(step), 16, 1e-3).finite
    tensors = state.tensors()
    name = "model.layers.0.post_attention_layernorm.weight"
    FlatBuffer(CONFIG, tensors["parameters"])[name][7] = value
    state.load(tensors, 3)
    before = state.backend.runtime.saturated
    assert not state.train_step(stream.rows(3), 16, 1e-3).finite
    np.testing.assert_array_equal(state.tensors()["parameters"], tensors["parameters"])
    state.train_step(stream.rows(4), 16, 1e-3)
    if np.isinf(value):
        assert state.backend.runtime.saturated > before


def test_training_again_on_the_same_engine_begins_anew():
    backend = engine()
    assert digest(trained(backend, 4)) == digest(trained(backend, 4))


def test_a_recorded_step_keeps_its_weights_when_another_model_is_trained():
    """Its graph holds the addresses of their copies in e4m3."""
    backend, config = engine(), ModelConfig.from_dict(SMALL)
    stream = source_rows(config, 32, 128, seed=5)

    def stepped(seed, steps):
        start = spread_parameters(config, np.random.default_rng(seed))
        state = TrainingState(config, backend, start, ADAMW)
        for _ in range(steps):
            state.train_step(stream.rows(state.step), 32, 1e-3)
        return state

    expected = stepped(3, 5).tensors()["parameters"]
    state = stepped(3, 4)
    assert state.inputs.program.graph is not None
    scales = backend.runtime.scales
    other = stepped(4, 4)
    backend.runtime.scales = scales
    state.train_step(stream.rows(4), 32, 1e-3)
    np.testing.assert_array_equal(state.tensors()["parameters"], expected)
    assert other.train_step(stream.rows(4), 32, 1e-3).finite


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"preset": "large"},
        {"qk_norm": "rms"},
        {"preset": "gpt2"},
        GPT2 | {"mtp_heads": 2, "step_size": 0.5, "tied": False},
    ],
)
def test_the_start_check_passes_and_computes_in_fp8(fields):
    backend = engine()
    config = ModelConfig.from_dict({"preset": "base"} | fields)
    assert not [row for row in check_form(backend, config) if not row.passed]
    inner = "dup 1" if config.family == "gpt2" else "dgate_up 1"
    assert {"norm 4", "hidden again 1", inner, "dqkv 1", "dlogits 0"} <= set(backend.fp8.names)


def wrong_slot(ops, monkeypatch):
    """A product takes the scale of its weight for both factors."""
    fp8, operands = ops.fp8, ops.fp8.operands

    def mistaken(x, weight, *, across=False):
        pair = operands(x, weight, across=across)
        return pair and (pair[0]._replace(slot=pair[1].slot), pair[1])

    monkeypatch.setattr(fp8, "operands", mistaken)


def old_weights(ops, monkeypatch):
    """The weights' copies are those of another model."""
    fp8, begin = ops.fp8, ops.fp8.begin_step

    def mistaken(weights):
        begin(weights)
        for along, _ in fp8.weights.values():
            along.values[...] = along.values[::-1].copy()

    monkeypatch.setattr(fp8, "begin_step", mistaken)


def other_tokens(ops, monkeypatch):
    """A gradient of a weight pairs tokens with their neighbours."""
    operands = ops.fp8.transposed_operands

    def mistaken(dout, x):
        pair = operands(dout, x)
        if pair:
            pair[0].values[...] = pair[0].values[:, ::-1].copy()
        return pair

    monkeypatch.setattr(ops.fp8, "transposed_operands", mistaken)


def no_bias(ops, monkeypatch):
    """What GELU is taken of has no bias."""
    gelu, nothing = ops.fused.gelu, ops.zeros((4096,), ops.activation)

    def mistaken(bias, *arrays):
        gelu(nothing[: len(bias)], *arrays)

    monkeypatch.setattr(ops.fused, "gelu", mistaken)


def scaled_bias_gradient(ops, monkeypatch):
    """A bias's gradient is that of the scaled copy."""
    launch = ops.launch

    def mistaken(source, kernel, grid, threads, *arguments, **options):
        if kernel == "bias_backward_transposed":
            arguments = arguments[0], arguments[1][1:], *arguments[2:]
        launch(source, kernel, grid, threads, *arguments, **options)

    monkeypatch.setattr(ops, "launch", mistaken)


MISTAKES = [wrong_slot, old_weights, other_tokens]


@pytest.mark.parametrize(
    ("preset", "plant"),
    [("base", plant) for plant in MISTAKES]
    + [("gpt2-tiny", plant) for plant in (*MISTAKES, no_bias, scaled_bias_gradient)],
)
def test_the_start_check_finds_planted_mistakes(preset, plant, monkeypatch):
    backend = engine()
    plant(backend, monkeypatch)
    config = small_form(ModelConfig.from_dict({"preset": preset}))
    assert not all(row.passed for row in check_form(backend, config))
