"""Muon moves matrices by orthogonal updates."""

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import POLYNOMIALS, Muon, MuonOptimizer
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

CONFIG = ModelConfig(
    vocab_size=50,
    dim=24,
    layers=2,
    heads=3,
    kv_heads=1,
    ffn=20,
    context=8,
    mtp_heads=2,
    head_size=16,
)
ADAMW = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
MUON = Muon(0.95, ADAMW)


def rows(step, config=CONFIG):
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 3000).astype(np.int32)
    length = config.context
    return TextStream(tokens, length, 12 * length, config.mtp_weights, 0, True, 1, "text").step(
        step
    )


def make_state(ops=None, config=CONFIG, settings=MUON):
    return TrainingState(
        config, ops or ReferenceBackend(np.float64), initial_parameters(config, 1), settings
    )


@pytest.mark.parametrize("shape", [(20, 20), (12, 40), (40, 12)])
def test_an_update_is_nearly_the_orthogonal_matrix_that_the_svd_gives(shape):
    ops = ReferenceBackend(np.float64)
    x = np.random.default_rng(3).standard_normal(shape)
    u, _, v = np.linalg.svd(x, full_matrices=False)
    found = ops.orthogonalize(x, POLYNOMIALS)
    assert np.linalg.norm(found - u @ v) < 0.15 * np.linalg.norm(u @ v)
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.8 < values.min() <= values.max() < 1.13


def test_small_singular_values_are_brought_up():
    ops = ReferenceBackend(np.float64)
    x = np.random.default_rng(3).standard_normal((16, 48))
    u, _, v = np.linalg.svd(x, full_matrices=False)
    x = u @ np.diag(np.geomspace(0.02, 1, 16)) @ v / 3
    values = np.linalg.svd(ops.orthogonalize(x, POLYNOMIALS), compute_uv=False)
    assert 0.7 < values.min() <= values.max() < 1.13


def test_every_parameter_belongs_to_exactly_one_optimizer():
    ops = ReferenceBackend()
    elements = FlatBuffer.elements(CONFIG)
    optimizer = MUON.make(CONFIG, ops, slice(0, elements))
    assert isinstance(optimizer, MuonOptimizer)
    owners = np.zeros(elements, int)
    for part, *_ in optimizer.runs:
        owners[part] += 1
    for group in optimizer.groups:
        for offset in group.offsets:
            owners[offset : offset + group.rows * group.columns] += 1
    table = FlatBuffer(CONFIG, np.zeros(len(owners), np.float32)).table
    for tensor in table:
        assert (owners[tensor.offset : tensor.stop] == 1).all(), tensor.name
    assert owners.max() == 1


def test_a_step_is_the_formula():
    state = make_state()
    before = state.parameters.copy()
    state.train_step(rows(0), 12, 0.01)
    gradients = FlatBuffer(CONFIG, state.gradients)
    after, start = FlatBuffer(CONFIG, state.parameters), FlatBuffer(CONFIG, before)
    for name in ("self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"model.layers.1.{name}.weight"
        gradient = gradients[name]
        update = (
            0.2 * max(gradient.shape) ** 0.5 * state.backend.orthogonalize(gradient, POLYNOMIALS)
        )
        expected = start[name] * (1 - 0.01 * 0.1) - 0.01 * update
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-9)


def test_it_learns():
    state = make_state()
    losses = [state.train_step(rows(0), 12, 0.01).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_padding_stays_zero():
    state = make_state()
    for step in range(3):
        state.train_step(rows(step), 12, 0.01)
    buffer = FlatBuffer(CONFIG, np.ones_like(state.parameters))
    for name in buffer.rows:
        buffer[name][...] = 0
    assert not state.parameters[buffer.array == 1].any()


def test_a_step_that_is_not_finite_changes_nothing():
    state = make_state()
    FlatBuffer(CONFIG, state.parameters)["model.norm.weight"][0] = np.nan
    before = {name: array.copy() for name, array in state.tensors().items()}
    state.train_step(rows(0), 12, 0.01)
    for name, array in state.tensors().items():
        np.testing.assert_array_equal(array, before[name])


def check_engine(engine, config, tolerance):
    """After some steps an engine's parameters are the reference's."""
    parameters = []
    for ops in (engine, ReferenceBackend(np.float64)):
        state = make_state(ops, config)
        for step in range(3):
            state.train_step(rows(step, config), 12, 1e-3)
        parameters.append(np.asarray(ops.to_host(state.parameters), np.float64))
    start = initial_parameters(config, 1)
    found, expected = (FlatBuffer(config, values - start) for values in parameters)
    for name in found.rows:
        error = np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
        assert error <= tolerance, (name, error)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_cpu_engine_does_what_the_reference_does(threads):
    check_engine(CpuBackend(threads), CONFIG, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.2)])
def test_a_gpu_does_what_the_reference_does(precision, tolerance):
    config = ModelConfig(
        vocab_size=300,
        dim=64,
        layers=3,
        heads=4,
        kv_heads=2,
        ffn=100,
        context=32,
        mtp_heads=2,
        head_size=32,
    )
    from nanoeuler.backend.cuda.engine import CudaBackend

    check_engine(CudaBackend(precision), config, tolerance)
