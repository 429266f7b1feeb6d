"""An optimizer is a choice: another one trains, is saved and restored, and is counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.families import FAMILIES
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import parameter_count, tensor_table
from nanoeuler.training.check_updates import check_updates
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.optimizer.optimizer import checkpoint_bytes, state_bytes
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import TINY

EMBEDDING = FAMILIES["llama"].embedding

UNCLIPPED = AdamW(clip_norm=1e9)


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum, for hosts: one tensor instead of AdamW's two."""

    decay: float = 0.9
    adamw: AdamW = UNCLIPPED
    tensor_powers: ClassVar[Mapping[str, int]] = {"velocity": 1}

    def make(self, config, ops, part):
        return MomentumOptimizer(self.decay, ops.zeros((part.stop - part.start,)))


class MomentumOptimizer:
    def __init__(self, decay, velocity):
        self.decay, self.tensors = decay, {"velocity": velocity}

    def update(self, flat, scalars):
        velocity = self.tensors["velocity"]
        velocity *= self.decay
        velocity += flat.gradients
        flat.parameters -= scalars[2] * velocity


def make_state():
    return TrainingState(TINY, ReferenceBackend(), initial_parameters(TINY, 1), Momentum())


def rows(step):
    tokens = np.random.default_rng(1).integers(0, 50, 1000).astype(np.int32)
    return TextStream(tokens, 8, 96, TINY.mtp_weights, 0, True, 1, "text").rows(step)


def test_another_optimizer_trains():
    state = make_state()
    losses = [state.train_step(rows(0), 12, 0.1).loss for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_a_checkpoint_keeps_the_tensors_of_another_optimizer(tmp_path):
    whole, stopped, resumed = make_state(), make_state(), make_state()
    for step in range(4):
        whole.train_step(rows(step), 4, 0.1)
    for step in range(2):
        stopped.train_step(rows(step), 4, 0.1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(stopped.step, stopped.config, stopped.tensors(), {})
    checkpoints.restore(2, resumed)
    for step in range(2, 4):
        resumed.train_step(rows(step), 4, 0.1)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)


def test_estimates_count_the_tensors_of_the_optimizer():
    flat, parameters = initial_parameters(TINY, 1).nbytes, parameter_count(TINY)
    assert (state_bytes(TINY, Momentum), state_bytes(TINY, AdamW)) == (3 * flat, 4 * flat)
    assert checkpoint_bytes(parameters, Momentum) == 8 * parameters
    assert checkpoint_bytes(parameters, AdamW) == 12 * parameters


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "engine", [CpuBackend(2), ReferenceBackend(np.float64)], ids=["cpu", "fp64"]
)
@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_three_updates_are_the_formula_with_sums_for_moments(kind, engine, family):
    """Half of the gradients are as small as ε, and the embedding has a rate of its own."""
    adamw = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0, embedding_rate=3.0)
    rows = list(check_updates(engine, adamw if kind is AdamW else Muon(0.95, adamw), family))
    assert max(row.error for row in rows) < (5e-7 if engine.name == "cpu" else 1e-15)


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_the_embedding_has_a_learning_rate_and_a_spread_of_its_own(kind):
    """The first update of AdamW moves nearly every element by the learning rate."""
    moved = {}
    for rate in (1.0, 10.0):
        adamw = AdamW(0.9, 0.95, 1e-8, 0.0, 1.0, rate)
        optimizer = adamw if kind is AdamW else Muon(0.95, adamw)
        before = initial_parameters(TINY, 1, embedding_std=0.4)
        state = TrainingState(TINY, ReferenceBackend(), before.copy(), optimizer)
        state.train_step(rows(0), 12, 1e-3)
        change = FlatBuffer(TINY, state.parameters - before)
        moved[rate] = {t.name: np.abs(change[t.name]).max() for t in tensor_table(TINY)}
        assert 0.38 < FlatBuffer(TINY, before)[EMBEDDING].std() < 0.42
    assert moved[10.0].pop(EMBEDDING) == pytest.approx(10e-3, rel=1e-3)
    assert moved[1.0].pop(EMBEDDING) == pytest.approx(1e-3, rel=1e-3)
    assert moved[1.0] == moved[10.0]
