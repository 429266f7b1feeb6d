"""Whole models: both families train, decode and resume as the specification does."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
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
}


@pytest.mark.parametrize("name", FORMS)
def test_losses_gradients_and_decoded_logits_are_the_specifications(engine, name):
    config = ModelConfig.from_dict(FORMS[name])
    for row in check_small_model(engine, small_form(config), recompute=name == "llama"):
        assert row.error <= 1e-5, row  # some tens of roundings; the limit of training is 2e-4


@pytest.mark.parametrize("optimizer", [ADAMW, MUON, Lion(ADAMW)], ids=["adamw", "muon", "lion"])
def test_updates_are_those_of_the_formula(engine, optimizer):
    for row in check_updates(engine, optimizer):
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


def test_training_is_the_specifications_and_has_the_same_bits_when_it_is_resumed(engine):
    losses, _ = trained(engine, 8)
    expected, _ = trained(ReferenceBackend(np.float64), 8)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < 0.9 * losses[0]
    first, tensors = trained(engine, 5)
    rest, _ = trained(engine, 3, tensors)
    assert first + rest == losses
