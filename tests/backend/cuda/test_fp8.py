"""Copies in e4m3 and the products that read them."""

import numpy as np
import pytest

from nanoeuler.backend.records import (
    AttentionArrays,
    EulerStep,
    GateUp,
    LogitRows,
    NormGradients,
    RmsNorm,
    Rotation,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import compare
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.check_form import ADAMW, spread_parameters
from nanoeuler.training.state import TrainingState

pytestmark = pytest.mark.gpu
ROUNDING, SMALLEST = 2**-4, 2**-10
"""Half of the last of e4m3's 4 bits, and half of its smallest number."""

SAME_FACTORS = 2.5e-3
"""Products whose factors are the copies themselves: their results are rounded to bfloat16, 2⁻⁹ at
most, and the matrix units keep 14 bits of a sum of up to 2,048 terms."""

EXACT_SUMS = 5e-4
"""The same for gradients of weights, which are float32: only the sums err."""

CONFIG = ModelConfig.from_dict({"preset": "base", "layers": 1, "mtp_heads": 2})
N, T = 4608, 512  # whole rows, and no whole number of clusters of tiles
TRANSPOSED = np.array([token // 2 + token % 2 * 8 for token in range(16)])
"""Which of 16 tokens lies at each of 16 places of a copy with the tokens last."""


def error(found, expected):
    return compare("", "", found, expected).error


def engine(precision="fp8", **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision, **fields)


class Trial:
    """An engine in training, the weights of a layer, and random arrays."""

    def __init__(self, config=CONFIG):
        self.ops = engine()
        self.fp8 = self.ops.fp8
        self.random = np.random.default_rng(0)
        parameters = spread_parameters(config, self.random)
        self.state = TrainingState(config, self.ops, parameters, ADAMW)
        self.weights = self.state.model.weights
        self.attention, self.mlp = self.weights.blocks

    def array(self, *shape, scale=1.0):
        values = self.random.normal(size=shape) * scale
        return self.ops.from_host(values.astype(np.float32), self.ops.activation)

    def empty(self, *shape):
        return self.ops.empty(shape, self.ops.activation)

    def run(self, work):
        """`work` as the pass of two training steps; the first only notes magnitudes."""
        self.ops.runtime.scales = {}

        def step():
            self.ops.runtime.training_weights(self.weights)
            self.fp8.begin_pass()
            work()

        program = self.ops.runtime.program(step, training=True, untimed=True)
        for _ in range(2):
            program.run()

    def host(self, array):
        return np.asarray(self.ops.to_host(array), np.float64)

    def decoded(self, copy):
        import ml_dtypes

        values = self.ops.to_host(copy.values).view(ml_dtypes.float8_e4m3fn)
        return values.astype(np.float64) * float(self.ops.to_host(copy.slot)[0])

    def copy(self, array):
        return self.decoded(self.fp8.operand(array))

    def transposed(self, array):
        """A copy with the tokens last, as rows of tokens."""
        transposed = self.decoded(self.fp8.transposed[array.data.ptr])
        values = np.empty_like(transposed)
        tokens = np.arange(transposed.shape[1])
        values[:, tokens // 16 * 16 + TRANSPOSED[tokens % 16]] = transposed
        return values.T

    def weight(self, array):
        return self.decoded(self.fp8.weights[array.data.ptr].along)

    def assert_rounded(self, found, exact, slot, rounded_before=0.0):
        """The nearest numbers of e4m3, up to `rounded_before` of their size."""
        inverse = float(self.ops.to_host(slot)[0])
        error = np.abs(found - exact) - SMALLEST * inverse
        assert (error <= (ROUNDING + 1.1 * rounded_before + 1e-5) * np.abs(exact)).all()


@pytest.fixture(scope="module")
def trial():
    return Trial()


def test_weights_are_rounded_to_e4m3_and_transposed(trial):
    trial.run(lambda: None)
    assert len(trial.fp8.weights) == 5
    for array in (trial.attention.query_key_value, trial.mlp.down, trial.weights.heads):
        exact = trial.host(array)
        along, across = trial.fp8.weights[array.data.ptr]
        trial.assert_rounded(trial.decoded(along), exact, along.slot)
        assert np.array_equal(trial.decoded(across), trial.decoded(along).T)
        inverse, scale, largest, _ = trial.ops.to_host(along.slot)
        assert largest == np.abs(exact).max()
        assert 224 < scale * largest <= 448
        assert scale * inverse == 1
        assert np.frexp(scale)[0] == 0.5


def norm_of(trial, x):
    weight = trial.ops.from_host(np.float32(1 + trial.random.normal(size=768) / 5))
    return RmsNorm(x, weight, 1e-5, trial.empty(N, 768), trial.ops.empty((N,)))


def test_norms_and_their_gradients_are_copied_and_transposed(trial):
    norm, dout = norm_of(trial, trial.array(N, 768)), trial.array(N, 768, scale=1e-4)
    before = trial.host(trial.array(N, 768, scale=1e-4))
    dx, normed = trial.empty(N, 768), trial.empty(N, 768)
    into = NormGradients(dx, trial.ops.zeros((768,)), add_to_dx=True, out_ND=normed)
    reference = ReferenceBackend(np.float64)
    exact = RmsNorm(*(trial.host(array) if hasattr(array, "shape") else array for array in norm))
    reference.rms_norm(exact)
    out, expected = exact.out_ND, before.copy()
    wanted = NormGradients(expected, np.zeros(768), add_to_dx=True)
    reference.rms_norm_backward(trial.host(dout), exact, wanted)

    def work(awaits_input):
        trial.ops.rms_norm(norm)
        dx[...] = trial.ops.from_host(before.astype(np.float32), trial.ops.activation)
        trial.fp8.awaits_input = awaits_input
        trial.ops.rms_norm_backward(dout, norm, into)

    for awaits_input in (False, True):
        trial.run(lambda: work(awaits_input))  # noqa: B023 (run at once)
        slots = [trial.fp8.operand(array).slot for array in (norm.out_ND, dx)]
        trial.assert_rounded(trial.copy(norm.out_ND), out, slots[0])
        # dx was rounded to bfloat16 on its way in, and is the small sum of larger terms
        assert error(trial.copy(dx), expected) <= 3e-2
        if awaits_input:
            slot = trial.fp8.transposed[normed.data.ptr].slot
            trial.assert_rounded(trial.transposed(normed), out, slot, 2**-9)
        else:
            assert np.array_equal(trial.transposed(dx), trial.copy(dx))
            assert error(trial.host(normed), out) <= 2**-9


def test_products_are_those_of_the_copies(trial):
    norm = norm_of(trial, trial.array(N, 768))
    w, out, total = trial.mlp.gate_up, trial.empty(N, 4096), trial.empty(N, 768)
    dx, x = trial.empty(N, 768), trial.array(N, 768)
    output, found = trial.attention.output, {}

    def work():
        trial.ops.rms_norm(norm)
        trial.ops.linear(norm.out_ND, w, out)
        trial.ops.linear_backward_input(norm.out_ND, output, dx, scale=0.5)
        found["copy"] = trial.copy(norm.out_ND)  # whose memory the norm behind the step takes
        step = EulerStep(x, None, 0.5, norm_of(trial, total))
        trial.ops.euler_step(norm.out_ND, output, step)

    trial.run(work)
    copy = found["copy"]
    assert error(trial.host(out), copy @ trial.weight(w).T) <= SAME_FACTORS
    assert error(trial.host(dx), 0.5 * copy @ trial.weight(output)) <= SAME_FACTORS
    expected = trial.host(x) + 0.5 * copy @ trial.weight(output).T
    assert error(trial.host(total), expected) <= SAME_FACTORS


def test_the_product_with_the_rotation_is_that_of_the_copies(trial):
    norm, w = norm_of(trial, trial.array(N, 768)), trial.attention.query_key_value
    packed = trial.empty(N, 1280)
    rotated = [packed[:, :1024].reshape(N, 16, 64)]
    positions = (np.arange(N) % T).astype(np.int32)
    table = trial.ops.rope_table(T, 64, 10_000.0)

    def work():
        trial.ops.rms_norm(norm)
        rotation = Rotation(trial.ops.from_host(positions), table)
        trial.ops.linear_rope(norm.out_ND, w, packed, rotated, rotation)

    trial.run(work)
    expected = trial.copy(norm.out_ND) @ trial.weight(w).T
    reference = ReferenceBackend(np.float64)
    parts = expected[:, :1024].reshape(N, 16, 64)
    reference.rope(parts, positions, reference.rope_table(T, 64, 10_000.0))
    assert error(trial.host(packed), expected) <= SAME_FACTORS


def test_an_mlp_and_the_gradients_of_its_weights_are_those_of_the_copies(trial):
    norm, dout = norm_of(trial, trial.array(N, 768)), trial.array(N, 768, scale=1e-4)
    packed, hidden, dx = trial.empty(N, 4096), trial.empty(N, 2048), trial.empty(N, 768)
    gate, up = slice(0, 2048), slice(2048, 4096)
    forward, dhidden = {}, trial.empty(N, 768)
    ddown, dgate_up = trial.ops.zeros((768, 2048)), trial.ops.zeros((4096, 768))
    product, fresh = GateUp(packed, gate, up), NormGradients(dx, trial.ops.zeros((768,)))

    def work():
        ops, fp8 = trial.ops, trial.fp8
        ops.rms_norm(norm)
        ops.linear_swiglu(norm.out_ND, trial.mlp.gate_up, product, hidden)
        if fp8.ready:
            forward["packed"], forward["hidden"] = trial.host(packed), trial.copy(hidden)
        ops.rms_norm_backward(dout, norm, fresh)
        ops.linear_swiglu_backward(dx, trial.mlp.down, 0.5, product, hidden)
        if fp8.ready:
            forward["dx"], forward["transposed"] = trial.copy(dx), trial.transposed(hidden)
            forward["dpacked"] = trial.copy(packed)
            assert np.array_equal(trial.transposed(packed), forward["dpacked"])
        ops.linear_backward_weight(dx, hidden, ddown, accumulate=False, scale=0.5)
        ops.linear_backward_input(packed, trial.mlp.gate_up, dhidden)
        ops.rms_norm_backward(dout, norm, fresh._replace(add_to_dx=True, out_ND=dhidden))
        if fp8.ready:
            forward["normed"] = trial.transposed(dhidden)
        ops.linear_backward_weight(packed, dhidden, dgate_up, accumulate=False)

    trial.run(work)
    expected = trial.copy(norm.out_ND) @ trial.weight(trial.mlp.gate_up).T
    assert error(forward["packed"], expected) <= SAME_FACTORS
    reference = ReferenceBackend(np.float64)
    parts, exact = (forward["packed"][:, gate], forward["packed"][:, up]), np.empty((N, 2048))
    reference.swiglu(*parts, exact)
    slots = trial.fp8.slots[[trial.fp8.names[name] for name in ("hidden 0", "hidden again 0")]]
    trial.assert_rounded(forward["hidden"], exact, slots[0], 1e-4)  # fast exponentials
    trial.assert_rounded(forward["transposed"], exact, slots[1], 1e-4)
    gradient = 0.5 * forward["dx"] @ trial.weight(trial.mlp.down)
    dparts = np.empty((N, 4096))
    reference.swiglu_backward(gradient, *parts, dparts[:, gate], dparts[:, up])
    # e4m3 rounds each by up to 2⁻⁴, evenly spread: 2⁻⁴ / √6 in the mean square at most
    assert error(forward["dpacked"], dparts) <= 2.8e-2
    found = trial.host(ddown)
    assert error(found, 0.5 * forward["dx"].T @ forward["transposed"]) <= EXACT_SUMS
    assert error(trial.host(dgate_up), forward["dpacked"].T @ forward["normed"]) <= EXACT_SUMS


def test_attention_and_its_gradients_are_copied(trial):
    def heads(packed, out):
        parts = packed[:, :768], packed[:, 768:1024], packed[:, 1024:], out
        return AttentionArrays(*(part.reshape(N // T, T, -1, 64) for part in parts))

    qkv, out = trial.array(N, 1280), trial.empty(N, 768)
    dqkv, dout = trial.empty(N, 1280), trial.array(N, 768, scale=1e-4)
    lse, starts = trial.ops.empty((N // T, 12, T)), trial.ops.zeros((N // T, T), np.int32)
    saved, gradients = heads(qkv, out), heads(dqkv, dout)
    found = {}

    def work():
        trial.ops.attention(saved, starts, starts[:, 0], lse)
        found["out"] = trial.copy(out)
        trial.ops.attention_backward(saved, gradients, starts, lse)

    trial.run(work)
    slots = trial.fp8.slots[[trial.fp8.names[name] for name in ("attention 0", "dqkv 0")]]
    trial.assert_rounded(found["out"], trial.host(out), slots[0])
    trial.assert_rounded(trial.copy(dqkv), trial.host(dqkv), slots[1])


def test_gradients_of_logits_are_copied(trial):
    logits, target = trial.array(N, 4096, scale=2.0), trial.random.integers(-1, 4096, N)
    before, gradients = logits.copy(), trial.empty(N, 4096)
    targets = trial.ops.from_host(target.astype(np.int32))
    weights, numbers = trial.ops.from_host(np.full(N, 1e-5, np.float32)), trial.ops.empty((2, N))

    def work():
        gradients[...] = before
        rows = LogitRows(gradients, targets, *numbers, weights)
        trial.ops.cross_entropy_with_gradient(rows)

    trial.run(work)
    exact = trial.host(logits)
    reference = ReferenceBackend(np.float64)
    rows = LogitRows(exact, target, *np.empty((2, N)), np.full(N, 1e-5))
    reference.cross_entropy_with_gradient(rows)
    slot = trial.fp8.operand(gradients).slot
    trial.assert_rounded(trial.copy(gradients), exact, slot, 1e-4)  # fast exponentials


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_becomes_nan_and_an_infinity_is_counted(trial, value):
    """It reaches the loss through the products; a finite neighbour is rounded as ever."""
    x = trial.array(N, 768)
    norm = norm_of(trial, x)
    weight = trial.ops.from_host(np.ones(768, np.float32), norm.weight_D.dtype)

    def work():
        trial.ops.rms_norm(norm._replace(weight_D=weight))

    trial.run(work)
    program = trial.ops.runtime.program(
        lambda: (trial.ops.runtime.training_weights(trial.weights), trial.fp8.begin_pass(), work()),
        training=True,
        untimed=True,
    )
    before, right = trial.ops.runtime.saturated, trial.copy(norm.out_ND)
    weight[5] = value
    program.run()
    found = trial.copy(norm.out_ND)
    assert np.isnan(found[:, 5]).all()
    np.testing.assert_array_equal(np.delete(found, 5, axis=1), np.delete(right, 5, axis=1))
    weight[5] = 1
    program.ran = False
    program.run()
    assert trial.ops.runtime.saturated == before + bool(np.isinf(value))
    np.testing.assert_array_equal(trial.copy(norm.out_ND), right)


def test_numbers_too_large_become_the_largest_are_counted_and_make_room(trial):
    x = trial.array(N, 768)
    norm = norm_of(trial, x)
    fields = {"factor": 1.0}

    def work():
        scaled = norm.weight_D * fields["factor"]
        trial.ops.rms_norm(norm._replace(weight_D=scaled))

    trial.run(work)
    program = trial.ops.runtime.program(
        lambda: (trial.ops.runtime.training_weights(trial.weights), trial.fp8.begin_pass(), work()),
        training=True,
        untimed=True,
    )
    before = trial.ops.runtime.saturated
    fields["factor"] = 1000.0
    program.run()
    copy = trial.fp8.operand(norm.out_ND)
    assert np.abs(trial.copy(norm.out_ND)).max() == 448 * float(trial.ops.to_host(copy.slot)[0])
    program.ran = False  # not recorded: `factor` may change
    program.run()
    assert trial.ops.runtime.saturated == before + 1
    exact, inverse = np.empty((N, 768)), np.empty(N)
    weight = 1000 * trial.host(norm.weight_D)
    plain = RmsNorm(trial.host(x), weight, norm.epsilon, exact, inverse)
    ReferenceBackend(np.float64).rms_norm(plain)
    slot = trial.fp8.operand(norm.out_ND).slot
    trial.assert_rounded(trial.copy(norm.out_ND), exact, slot)
