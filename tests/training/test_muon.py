"""Muon moves matrices by orthogonal updates."""

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.training.check_updates import check_updates
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
GPT2 = ModelConfig(50, 24, 2, 3, 3, ffn=20, context=8, mtp_heads=2, family="gpt2")
ADAMW = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
MUON = Muon(0.95, ADAMW)


def rows(step, config=CONFIG):
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 3000).astype(np.int32)
    length = config.context
    return TextStream(tokens, length, 12 * length, config.mtp_weights, 0, True, 1, "text").rows(
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


def orthogonal(matrix):
    """The polynomials on each singular value."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for a, b, c in POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
    return left @ np.diag(values) @ right


def parts(config, arrays):
    """The matrices that Muon moves, of a flat array, by hand."""
    buffer = FlatBuffer(config, arrays)
    if config.family == "gpt2":
        layer, dim = "transformer.h.1", config.dim
        packed = buffer[f"{layer}.attn.c_attn.weight"]
        q, k, v = packed[:dim], packed[dim : 2 * dim], packed[2 * dim :]
        others = "attn.c_proj", "mlp.c_fc", "mlp.c_proj"
        return [q, k, v, *(buffer[f"{layer}.{name}.weight"] for name in others)]
    names = "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"
    return [buffer[f"model.layers.1.{name}.weight"] for name in names]


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["llama", "gpt2"])
def test_three_steps_are_the_formula(config):
    """With Nesterov's momentum, which a step from zero momentum cannot tell from any other."""
    state, mu, decay = make_state(config=config), 0.95, 0.1
    momentum = [0.0] * len(parts(config, state.parameters))
    for step, rate in enumerate((0.01, 0.005, 0.02)):
        before = parts(config, state.parameters.copy())
        norm = state.train_step(rows(step, config), 12, rate).gradient_norm
        clipping = min(1, 1 / (norm + 1e-6))
        gradients = parts(config, state.gradients)
        after = parts(config, state.parameters)
        for i, gradient in enumerate(gradients):
            momentum[i] = mu * momentum[i] + (1 - mu) * clipping * gradient
            direction = mu * momentum[i] + (1 - mu) * clipping * gradient
            update = 0.2 * max(gradient.shape) ** 0.5 * orthogonal(direction)
            expected = before[i] - rate * (update + decay * before[i])
            np.testing.assert_allclose(after[i], expected, rtol=1e-9, atol=1e-12)


class WithoutNesterov(ReferenceBackend):
    """The direction is the momentum, which the gradient has entered once."""

    def muon_matrix(self, flat, momentum, group, offset, constants, scalars):
        _, clipping, rate, _ = scalars.tolist()
        part = slice(offset, offset + group.rows * group.columns)
        mu, moment, parameters = constants.momentum, momentum[part], flat.parameters[part]
        moment[...] = mu * moment + (1 - mu) * clipping * flat.gradients[part]
        matrix = moment.reshape(group.rows, group.columns)
        update = group.scale * self.orthogonalize(matrix, constants.polynomials).reshape(-1)
        parameters -= rate * (update + constants.weight_decay * parameters)


class PackedAsOne(ReferenceBackend):
    """q, k and v of a GPT-2 are one matrix."""

    def muon(self, flat, momentum, groups, constants, scalars):
        def one(group):
            square = [o for o in group.offsets if o + group.rows * group.columns in group.offsets]
            return (
                group
                if len(square) < 2
                else group._replace(rows=3 * group.rows, offsets=(square[0],))
            )

        super().muon(flat, momentum, [one(group) for group in groups], constants, scalars)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.95])
def test_the_check_has_the_formula_of_its_own(family, momentum):
    ops = ReferenceBackend(np.float64)
    assert all(row.error < 1e-14 for row in check_updates(ops, Muon(momentum, ADAMW), family))


@pytest.mark.parametrize(
    ("engine", "family"),
    [(WithoutNesterov, "llama"), (WithoutNesterov, "gpt2"), (PackedAsOne, "gpt2")],
)
def test_a_mistake_in_the_specification_of_muon_fails_the_check(engine, family):
    """Even within the roundings of bfloat16, which are 5e-3."""
    rows = list(check_updates(engine(np.float64), MUON, family))
    assert max(row.error for row in rows) > 2 * Muon.tolerance["bf16"]


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
        ours, theirs = found[name], expected[name]
        if name.endswith("c_attn.bias"):  # k's adds the same to all scores: its gradient is noise
            ours, theirs = (np.delete(each.reshape(3, -1), 1, axis=0) for each in (ours, theirs))
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert error <= tolerance, (name, error)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["llama", "gpt2"])
def test_the_cpu_engine_does_what_the_reference_does(threads, config):
    check_engine(CpuBackend(threads), config, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.2)])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_gpu_does_what_the_reference_does(precision, tolerance, family):
    config = ModelConfig(
        vocab_size=300,
        dim=64 if family == "llama" else 128,
        layers=3,
        heads=4,
        kv_heads=2 if family == "llama" else 4,
        ffn=100,
        context=32,
        mtp_heads=2,
        head_size=32,
        family=family,
    )
    from nanoeuler.backend.cuda.engine import CudaBackend

    check_engine(CudaBackend(precision), config, tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_gpu_moves_parameters_as_the_formula_says(precision, family, settings):
    from nanoeuler.backend.cuda.engine import CudaBackend

    rows = list(check_updates(CudaBackend(precision), settings, family))
    assert all(row.passed for row in rows), max(rows, key=lambda row: row.error)
