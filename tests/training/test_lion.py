"""Lion moves every element by the learning rate."""

import numpy as np
import pytest
from test_muon import CONFIG, make_state, rows

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Pretrain
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import tensor_table
from nanoeuler.training.check_updates import check_updates
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.lion import Lion
from nanoeuler.training.optimizer.optimizer import optimizer_of, state_bytes

LION = Lion(AdamW(0.9, 0.98, 1e-8, 0.1, 1.0, embedding_rate=3.0))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "engine", [CpuBackend(2), ReferenceBackend(np.float64)], ids=["cpu", "fp64"]
)
def test_three_updates_are_the_formula_with_sums_for_the_momentum(engine, family):
    found = list(check_updates(engine, LION, family))
    assert max(row.error for row in found) < (5e-7 if engine.name == "cpu" else 1e-15)


class BetasSwapped(ReferenceBackend):
    def lion_run(self, parameters, gradients, momentum, run, constants, scalars):
        beta1, beta2, decay = constants
        super().lion_run(parameters, gradients, momentum, run, (beta2, beta1, decay), scalars)


class DecayForgotten(ReferenceBackend):
    def lion_run(self, parameters, gradients, momentum, run, constants, scalars):
        constants = *constants[:2], 0.0
        super().lion_run(parameters, gradients, momentum, run, constants, scalars)


class MomentumMovedFirst(ReferenceBackend):
    def lion_run(self, parameters, gradients, momentum, run, constants, scalars):
        beta2 = constants[1]
        momentum *= beta2
        momentum += (1 - beta2) * scalars[1] * gradients
        super().lion_run(parameters, gradients, momentum.copy(), run, constants, scalars)


@pytest.mark.parametrize("mistaken", [BetasSwapped, DecayForgotten, MomentumMovedFirst])
def test_planted_mistakes_fail_the_check_of_updates(mistaken):
    assert any(row.error > 1e-3 for row in check_updates(mistaken(np.float64), LION))


def test_the_first_update_moves_every_element_by_the_learning_rate():
    """Norms, which do not decay, by no more; no other tensor than the embedding has its rate."""
    state = make_state(settings=LION)
    before = state.parameters.copy()
    state.train_step(rows(0), 12, 1e-3)
    change = FlatBuffer(CONFIG, state.parameters - before)
    for tensor in tensor_table(CONFIG):
        moved = np.abs(change[tensor.name])
        if not tensor.decay:
            np.testing.assert_allclose(moved, 1e-3, rtol=1e-9)
        elif "embed" not in tensor.name:
            assert 0.9e-3 < np.median(moved) < 1.1e-3


def test_it_trains_resumes_and_takes_less_memory(tmp_path):
    ops = ReferenceBackend()
    whole, stopped, resumed = (make_state(ops, settings=LION) for _ in range(3))
    losses = [whole.train_step(rows(0), 12, 2e-3).loss for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]
    for _ in range(5):
        stopped.train_step(rows(0), 12, 2e-3)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(stopped.step, stopped.config, stopped.tensors(), {})
    checkpoints.restore(5, resumed)
    for _ in range(5, 12):
        resumed.train_step(rows(0), 12, 2e-3)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    flat = initial_parameters(CONFIG, 1).nbytes
    assert state_bytes(CONFIG, Lion) == 3 * flat == state_bytes(CONFIG, AdamW) - flat


def test_a_configuration_names_it():
    settings = Pretrain(tokens=1, batch_tokens=1, learning_rate=1.0, keep="final", optimizer="lion")
    assert optimizer_of(settings) == Lion(AdamW())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_moves_parameters_by_the_formula(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    found = list(check_updates(CudaBackend(precision), LION))
    assert max(row.error for row in found) < LION.tolerance[precision]
