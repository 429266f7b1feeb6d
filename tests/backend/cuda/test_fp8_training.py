"""Training in fp8: equal bits on resume, the start check, planted mistakes."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.model.config import ModelConfig
from nanoeuler.training.check_form import ADAMW, check_form, small_form, spread_parameters
from nanoeuler.training.check_model import source_rows
from nanoeuler.training.state import TrainingState

pytestmark = pytest.mark.gpu
CONFIG = ModelConfig.from_dict({"preset": "base", "layers": 1, "mtp_heads": 2})


def engine(precision="fp8", **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision, **fields)


def trained(backend, steps, start=None):
    """A small model after some steps, from a checkpoint's tensors and scales."""
    config = ModelConfig.from_dict({"preset": "small", "ffn": 512})
    state = TrainingState(
        config, backend, spread_parameters(config, np.random.default_rng(3)), ADAMW
    )
    if start:
        state.load(start.tensors, start.step)
        backend.scales = start.scales
    stream = source_rows(config, 32, 128, seed=5)
    while state.step < steps:
        state.train_step(stream.step(state.step), 32, 1e-3)
    return SimpleNamespace(tensors=state.tensors(), scales=backend.scales, step=state.step)


def digest(end):
    return hashlib.sha256(b"".join(x.tobytes() for x in end.tensors.values())).hexdigest()


def test_a_resumed_run_ends_with_equal_bits():
    whole, half = trained(engine(), 6), trained(engine(), 3)
    assert digest(trained(engine(), 6, start=half)) == digest(whole)
    half.scales = {}  # and would not without them
    assert digest(trained(engine(), 6, start=half)) != digest(whole)


def test_training_again_on_the_same_engine_begins_anew():
    backend = engine()
    assert digest(trained(backend, 4)) == digest(trained(backend, 4))


@pytest.mark.parametrize("fields", [{}, {"preset": "large"}, {"qk_norm": "rms"}])
def test_the_start_check_passes_and_computes_in_fp8(fields):
    backend = engine()
    config = ModelConfig.from_dict({"preset": "base"} | fields)
    assert not [row for row in check_form(backend, config) if not row.passed]
    assert {"norm 4", "hidden again 1", "dgate_up 1", "dqkv 1", "dlogits 0"} <= set(
        backend.fp8.names
    )


def wrong_slot(fp8, monkeypatch):
    """A product takes the scale of its weight for both factors."""
    operands = fp8.operands

    def mistaken(x, weight, *, across=False):
        pair = operands(x, weight, across=across)
        return pair and (pair[0]._replace(slot=pair[1].slot), pair[1])

    monkeypatch.setattr(fp8, "operands", mistaken)


def old_weights(fp8, monkeypatch):
    """The weights' copies are those of another model."""
    begin = fp8.begin_step

    def mistaken(weights):
        begin(weights)
        for along, _ in fp8.weights.values():
            along.values[...] = along.values[::-1].copy()

    monkeypatch.setattr(fp8, "begin_step", mistaken)


def other_tokens(fp8, monkeypatch):
    """A gradient of a weight pairs tokens with their neighbours."""
    operands = fp8.turned_operands

    def mistaken(dout, x):
        pair = operands(dout, x)
        if pair:
            pair[0].values[...] = pair[0].values[:, ::-1].copy()
        return pair

    monkeypatch.setattr(fp8, "turned_operands", mistaken)


@pytest.mark.parametrize("plant", [wrong_slot, old_weights, other_tokens])
def test_the_start_check_finds_planted_mistakes(plant, monkeypatch):
    backend = engine()
    plant(backend.fp8, monkeypatch)
    config = small_form(ModelConfig.from_dict({"preset": "base"}))
    assert not all(row.passed for row in check_form(backend, config))
