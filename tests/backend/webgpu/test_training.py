"""Whole models: both families train, decode and resume as the specification does."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.backend.webgpu.device import device
from nanoeuler.model.buffers import training_pass_bytes
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.check_form import ADAMW, check_small_model, form_rows, small_form
from nanoeuler.training.check_updates import check_updates
from nanoeuler.training.optimizer.lion import Lion
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState

MUON = Muon(0.95, ADAMW)
SHAPE = {"vocab_size": 300, "dim": 24, "layers": 2, "ffn": 40, "context": 24}
FORMS = {
    "llama": {**SHAPE, "heads": 4, "kv_heads": 2, "head_size": 8, "mtp_heads": 2},
    "variants": {
        **{**SHAPE, "heads": 2, "kv_heads": 1, "head_size": 12, "mtp_heads": 1, "tied": True},
        **{"qk_norm": "weighted", "step_size": 0.5, "windows": [7, 0], "logit_cap": 5.0},
    },
    "gpt2": {**SHAPE, "heads": 2, "kv_heads": 2, "family": "gpt2", "mtp_heads": 1},
    "adapters": {
        **{**SHAPE, "heads": 4, "kv_heads": 2, "head_size": 8, "mtp_heads": 1},
        "lora": {"rank": 3, "alpha": 6.0, "targets": ["q_proj", "up_proj", "down_proj"]},
    },
}
LIMITS = {"fp32": 1e-5, "fp16": 5e-3}
"""Some tens of roundings. The limits of training are 2e-4 and 1e-2."""


@pytest.mark.parametrize("name", FORMS)
def test_losses_gradients_and_decoded_logits_are_the_specifications(either, name):
    config = ModelConfig.from_dict(FORMS[name])
    for row in check_small_model(either, small_form(config), recompute=name == "llama"):
        assert row.error <= LIMITS[either.precision], row


@pytest.mark.parametrize("optimizer", [ADAMW, MUON, Lion(ADAMW)], ids=["adamw", "muon", "lion"])
def test_updates_are_those_of_the_formula(either, optimizer):
    for row in check_updates(either, optimizer):
        assert row.passed, row


def test_updates_in_parts_are_the_same(engine, monkeypatch):
    monkeypatch.setattr(engine.kernels, "most_bytes", 80_000)
    for row in check_updates(engine, MUON):
        assert row.passed, row


def trained(engine, steps, tensors=None):
    """Losses and tensors after some steps, from the first or from where `tensors` are."""
    config = ModelConfig.from_dict(FORMS["llama"])
    state = TrainingState(config, engine, initial_parameters(config, 1), MUON)
    if tensors:
        state.load(tensors, 5)
    rows = form_rows(config, 4)
    losses = [state.train_step(rows, 2, 0.02).loss for _ in range(steps)]
    return losses, {name: array.copy() for name, array in state.tensors().items()}


def test_training_is_the_specifications_and_has_the_same_bits_when_it_is_resumed(either):
    losses, _ = trained(either, 8)
    expected, _ = trained(ReferenceBackend(np.float64), 8)
    assert losses == pytest.approx(expected, rel=LIMITS[either.precision])
    assert losses[-1] < 0.9 * losses[0]
    first, tensors = trained(either, 5)
    rest, _ = trained(either, 3, tensors)
    assert first + rest == losses


def test_in_float16_a_pass_takes_less_memory_and_the_norm_of_gradients_is_the_same(engine, halves):
    config, steps = ModelConfig.from_dict(FORMS["llama"]), []
    for each in (engine, halves):
        state = TrainingState(config, each, initial_parameters(config, 1), MUON)
        steps.append(state.train_step(form_rows(config, 4), 2, 0.02))
    assert steps[1].gradient_norm == pytest.approx(steps[0].gradient_norm, rel=1e-3)
    sizes = [training_pass_bytes(config, each, 8, 24) for each in (engine, halves)]
    assert sizes[1] < 0.7 * sizes[0]


def test_gradients_beyond_float16_leave_the_update_out(halves):
    config = ModelConfig.from_dict(FORMS["llama"])
    parameters = initial_parameters(config, 1)
    state = TrainingState(config, halves, parameters, MUON)
    rows = form_rows(config, 4)
    rows.weights *= 1e4  # a hundred for a target: 8192 · 100 is beyond 65504
    result = state.train_step(rows, 2, 0.02)
    assert not result.finite
    assert np.array_equal(halves.to_host(state.parameters), parameters)


def test_without_float16_on_the_adapter_all_is_in_float32(engine, monkeypatch):
    monkeypatch.setattr(device(), "has_halves", False)
    falling_back = type(engine)("fp16")
    assert (falling_back.precision, falling_back.activation) == ("fp32", np.float32)
    assert not falling_back.halves_weights
