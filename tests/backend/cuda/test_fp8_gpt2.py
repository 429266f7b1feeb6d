"""Copies in e4m3 of a GPT-2's ops and the products that read them: see test_fp8.py."""

import numpy as np
import pytest
from test_fp8 import EXACT_SUMS, SAME_FACTORS, N, Trial, error

from nanoeuler.backend.records import EulerStep, LayerNorm, LogitRows, NormGradients
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig

pytestmark = pytest.mark.gpu
CONFIG = ModelConfig.from_dict({"preset": "gpt2", "layers": 1, "vocab_size": 3973})
D, F = 768, 3072
REFERENCE = ReferenceBackend(np.float64)


@pytest.fixture(scope="module")
def trial():
    return Trial(CONFIG)


def norm_of(trial, x):
    weight, bias = (np.float32(trial.random.normal(size=D) / 5) for _ in range(2))
    weights = trial.ops.from_host(1 + weight), trial.ops.from_host(bias)
    return LayerNorm(x, *weights, 1e-5, trial.empty(N, D), trial.ops.empty((N,)))


def on_host(trial, norm):
    """The same norm in float64, computed."""
    arrays = [trial.host(array) if hasattr(array, "shape") else array for array in norm]
    exact = LayerNorm(*arrays)
    REFERENCE.layer_norm(exact)
    return exact


def test_every_matrix_is_quantized_and_no_bias(trial):
    trial.run(lambda: None)
    assert len(trial.fp8.weights) == 5
    assert trial.fp8.all_but == trial.weights.final_norm.data.ptr


def test_norms_behind_a_step_and_their_gradients_are_copied_and_transposed(trial):
    x, delta, dout = trial.array(N, D), trial.array(N, D), trial.array(N, D, scale=1e-4)
    constant = trial.array(D)
    norm = norm_of(trial, trial.empty(N, D))
    before = trial.host(trial.array(N, D, scale=1e-4))
    dx, normed = trial.empty(N, D), trial.empty(N, D)
    gradients = trial.ops.zeros((D,)), trial.ops.zeros((D,))

    def work(awaits_input):
        trial.ops.add_layer_norm(x, delta, constant, 0.5, norm)
        dx[...] = trial.ops.from_host(before.astype(np.float32), trial.ops.activation)
        trial.fp8.awaits_input = awaits_input
        into = NormGradients(dx, *gradients, add_to_dx=True, out_ND=normed)
        trial.ops.layer_norm_backward(dout, norm, into)

    for awaits_input in (False, True):
        trial.run(lambda: work(awaits_input))  # noqa: B023 (run at once)
        exact, expected = on_host(trial, norm), before.copy()
        wanted = np.zeros((2, D))
        into = NormGradients(expected, *wanted, add_to_dx=True)
        REFERENCE.layer_norm_backward(trial.host(dout), exact, into)
        slot = trial.fp8.operand(norm.out_ND).slot
        trial.assert_rounded(trial.copy(norm.out_ND), exact.out_ND, slot, 1e-5)
        # dx was rounded to bfloat16 on its way in, and is the small sum of larger terms
        assert error(trial.copy(dx), expected) <= 3e-2
        for found, sums in zip(gradients, wanted, strict=True):
            assert error(trial.host(found), sums) <= 1e-5
        if awaits_input:
            transposed = trial.fp8.transposed[normed.data.ptr]
            # 1/r and the sums of 768 terms are float32
            trial.assert_rounded(trial.transposed(normed), exact.out_ND, transposed.slot, 1e-5)
        else:
            assert np.array_equal(trial.transposed(dx), trial.copy(dx))
            assert error(trial.host(normed), exact.out_ND) <= 2**-9


@pytest.mark.parametrize("step_size", [1, 0.5])
def test_a_step_adds_the_product_of_the_copies_and_a_bias(trial, step_size):
    norm, x = norm_of(trial, trial.array(N, D)), trial.array(N, D)
    weight, bias = trial.attention.output, trial.attention.output_bias
    following, found = norm_of(trial, trial.empty(N, D)), {}

    def work():
        trial.ops.layer_norm(norm)
        found["copy"] = trial.copy(norm.out_ND)  # whose memory the norm behind the step takes
        step = EulerStep(x, trial.empty(N, D), step_size, following, bias)
        trial.ops.euler_step(norm.out_ND, weight, step)

    trial.run(work)
    delta = found["copy"] @ trial.weight(weight).T + trial.host(bias)
    assert error(trial.host(following.x_ND), trial.host(x) + step_size * delta) <= SAME_FACTORS
    slot = trial.fp8.operand(following.out_ND).slot
    exact = on_host(trial, following).out_ND
    trial.assert_rounded(trial.copy(following.out_ND), exact, slot, 1e-5)


def test_a_product_with_a_bias_is_that_of_the_copies(trial):
    norm, weight = norm_of(trial, trial.array(N, D)), trial.attention.query_key_value
    bias, packed = trial.attention.query_key_value_bias, trial.empty(N, 3 * D)

    def work():
        trial.ops.layer_norm(norm)
        trial.ops.linear_bias(norm.out_ND, weight, bias, packed)

    trial.run(work)
    expected = trial.copy(norm.out_ND) @ trial.weight(weight).T + trial.host(bias)
    assert error(trial.host(packed), expected) <= SAME_FACTORS


def test_an_mlp_and_the_gradients_of_its_weights_and_biases_are_those_of_the_copies(trial):
    norm, dout = norm_of(trial, trial.array(N, D)), trial.array(N, D, scale=1e-4)
    up, hidden, dx, dhidden = (trial.empty(N, size) for size in (F, F, D, D))
    ddown, dup = trial.ops.zeros((D, F)), trial.ops.zeros((F, D))
    down_bias, up_bias, *of_norm = (trial.ops.zeros((size,)) for size in (D, F, D, D))
    mlp, found, fresh = trial.mlp, {}, NormGradients(dx, *of_norm)

    def work():
        ops, fp8 = trial.ops, trial.fp8
        ops.layer_norm(norm)
        ops.linear_gelu(norm.out_ND, mlp.up, mlp.up_bias, up, hidden)
        if fp8.ready:
            found["up"], found["hidden"] = trial.host(up), trial.copy(hidden)
        ops.layer_norm_backward(dout, norm, fresh)
        ops.linear_gelu_backward(dx, mlp.down, 0.5, up, hidden)
        if fp8.ready:
            found["dx"], found["transposed"] = trial.copy(dx), trial.transposed(hidden)
            found["dup"] = trial.copy(up)
            assert np.array_equal(trial.transposed(up), found["dup"])
        for accumulate in (False, True):
            if accumulate:  # the same once more
                ops.layer_norm_backward(dout, norm, fresh)
                if fp8.ready:
                    ops.fp8.transposed[hidden.data.ptr] = found["kept"]
            elif fp8.ready:
                found["kept"] = fp8.transposed[hidden.data.ptr]
            arrays = dx, hidden, ddown, down_bias
            ops.linear_bias_backward(*arrays, accumulate=accumulate, scale=0.5)
        fp8.awaits_input = True
        ops.linear_backward_input(up, mlp.up, dhidden)
        ops.layer_norm_backward(dout, norm, fresh._replace(add_to_dx=True, out_ND=dhidden))
        if fp8.ready:
            found["normed"] = trial.transposed(dhidden)
        ops.linear_bias_backward(up, dhidden, dup, up_bias, accumulate=False)

    trial.run(work)
    expected = trial.copy(norm.out_ND) @ trial.weight(mlp.up).T + trial.host(mlp.up_bias)
    assert error(found["up"], expected) <= SAME_FACTORS
    exact = np.empty((N, F))
    REFERENCE.gelu(found["up"], exact)
    slots = trial.fp8.slots[[trial.fp8.names[name] for name in ("hidden 0", "hidden again 0")]]
    trial.assert_rounded(found["hidden"], exact, slots[0], 1e-4)  # fast exponentials
    trial.assert_rounded(found["transposed"], exact, slots[1], 1e-4)
    gradient, dexact = 0.5 * found["dx"] @ trial.weight(mlp.down), np.empty((N, F))
    REFERENCE.gelu_backward(gradient, found["up"], dexact)
    # e4m3 rounds each by up to 2⁻⁴, evenly spread: 2⁻⁴ / √6 in the mean square at most
    assert error(found["dup"], dexact) <= 2.8e-2
    assert error(trial.host(ddown), 2 * 0.5 * found["dx"].T @ found["transposed"]) <= EXACT_SUMS
    assert error(trial.host(dup), found["dup"].T @ found["normed"]) <= EXACT_SUMS
    # sums of exact numbers in float32
    assert error(trial.host(down_bias), 2 * 0.5 * found["dx"].sum(0)) <= 1e-5
    assert error(trial.host(up_bias), found["dup"].sum(0)) <= 1e-5


def test_gradients_of_logits_with_padding_are_copied_with_zeros_in_it(trial):
    V, columns = CONFIG.vocab_size, CONFIG.vocab_storage
    assert V % 8
    assert columns > V + 8
    whole, before = trial.empty(N, columns), trial.array(N, columns, scale=2.0)
    target = trial.random.integers(-1, V, N)
    targets = trial.ops.from_host(target.astype(np.int32))
    weights, numbers = trial.ops.from_host(np.full(N, 1e-5, np.float32)), trial.ops.empty((2, N))

    def work():
        whole[...] = before
        rows = LogitRows(whole[:, :V], targets, *numbers, weights)
        trial.ops.cross_entropy_with_gradient(rows)

    trial.run(work)
    exact = trial.host(before)[:, :V].copy()
    rows = LogitRows(exact, target, *np.empty((2, N)), np.full(N, 1e-5))
    REFERENCE.cross_entropy_with_gradient(rows)
    copy, slot = trial.copy(whole), trial.fp8.operand(whole).slot
    trial.assert_rounded(copy[:, :V], exact, slot, 1e-4)  # fast exponentials
    assert not copy[:, V:].any()
