"""Behaviour of the reference ops that numerical derivatives do not show.

Extreme values, flags, cached attention, the optimizer.
"""

import math
import re

import numpy as np
import pytest

from nanoeuler.backend import DEVICES, gpu_problem, make_backend, reason
from nanoeuler.backend.cuda.scratch import offsets, views
from nanoeuler.backend.records import (
    AdamWConstants,
    AttentionArrays,
    FlatState,
    LogitRows,
    NormGradients,
    ParameterRun,
    RmsNorm,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError


@pytest.fixture
def ops():
    return ReferenceBackend(np.float64)


@pytest.fixture
def random():
    return np.random.default_rng(1)


# ---- which backend


@pytest.mark.parametrize("device", ["auto", "cpu", "reference"])
def test_every_device_that_is_there_gives_a_float32_backend_and_a_reason(device):
    backend = make_backend(device)
    assert backend.empty((2,)).dtype == np.float32
    assert reason(device)


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(UserError, match="there are auto, cpu, cuda, webgpu, reference"):
        make_backend("tpu")
    assert "cuda" in DEVICES


@pytest.mark.parametrize("precision", ["fp99", "", None, 16])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_precision_that_is_none_is_refused_where_it_means_nothing_too(device, precision):
    with pytest.raises(UserError, match=r"precision .*: there are auto, fp32, tf32, bf16, fp8"):
        make_backend(device, precision=precision)
    make_backend(device, precision="bf16")


@pytest.mark.parametrize("device", DEVICES)
def test_more_gpus_than_one_are_refused_and_not_left_out(device):
    with pytest.raises(UserError, match="--gpus 4: only training and evaluate are shared by GPUs"):
        make_backend(device, gpus=4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gpus", [-1, 0.5, "a"])
def test_fewer_gpus_than_none_are_refused(device, gpus):
    expected = f"--gpus {gpus!r}: give the number of GPUs that may be used, or 0 to force the CPU"
    with pytest.raises(UserError, match=expected):
        make_backend(device, gpus=gpus)


def test_without_a_gpu_that_is_said_first():
    """Where there is no GPU, it is the workflow that adds `--gpus 0`, and not the user."""
    expected = gpu_problem() or "--device cuda with --gpus 0 contradict each other"
    with pytest.raises(UserError, match=re.escape(expected)):
        make_backend("cuda", gpus=0)


def test_arrays_keep_the_backends_float_type_and_integers_theirs():
    backend = ReferenceBackend(np.float32)
    assert backend.from_host(np.ones(2, np.float64)).dtype == np.float32
    assert backend.from_host(np.ones(2, np.int32)).dtype == np.int32
    assert backend.zeros((2,), np.int32).dtype == np.int32


# ---- forward, where numbers are extreme


def test_cross_entropy_does_not_overflow(ops):
    logits = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4 + 1]])
    targets = np.array([1, 2], np.int32)
    logprobs, lse = np.empty((2, 2))
    rows = LogitRows(logits, targets, logprobs, lse, np.ones(2))
    ops.cross_entropy(rows)
    np.testing.assert_allclose(lse, [1e4, -1e4 + math.log(2 + math.e)], rtol=1e-12)
    np.testing.assert_allclose(logprobs, [-1e4, 1 - math.log(2 + math.e)], rtol=1e-9)
    ops.cross_entropy_backward(rows)
    np.testing.assert_allclose(logits[0], [1, -1, 0], atol=1e-12)
    np.testing.assert_allclose(logits.sum(axis=1), 0, atol=1e-12)


def test_a_masked_target_has_no_loss_and_no_gradient_whatever_its_weight(ops, random):
    logits = random.standard_normal((3, 5))
    targets = np.array([1, -1, 4], np.int32)
    logprobs, lse = np.empty((2, 3))
    rows = LogitRows(logits, targets, logprobs, lse, np.array([1.0, 1e30, 1.0]))
    ops.cross_entropy(rows)
    assert logprobs[1] == 0
    ops.cross_entropy_backward(rows)
    assert not logits[1].any()
    assert logits[0].any()


def test_swiglu_saturates_without_overflow(ops):
    gate = np.array([[1e4, -1e4, 0.0]])
    out = np.empty_like(gate)
    with np.errstate(over="raise", invalid="raise"):
        ops.swiglu(gate, np.full_like(gate, 2.0), out)
    assert out.tolist() == [[2e4, 0.0, 0.0]]


def test_rms_norm_of_a_vector_of_zeros_is_zero(ops):
    x, out, inverse_rms = np.zeros((1, 4)), np.empty((1, 4)), np.empty(1)
    ops.rms_norm(RmsNorm(x, np.ones(4), 1e-5, out, inverse_rms))
    assert not out.any()
    assert inverse_rms[0] == pytest.approx(1e-5**-0.5)


def test_attention_to_far_scores_does_not_overflow(ops):
    query = np.array([100.0, 0.0]).reshape(1, 1, 1, 2)
    key = np.array([[100.0, 0.0], [-100.0, 0.0]]).reshape(1, 2, 1, 2)
    value = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 1, 2)
    out, lse = np.empty((1, 1, 1, 2)), np.empty((1, 1, 1))
    heads = AttentionArrays(query, key, value, out)
    ops.attention(heads, np.zeros((1, 1), np.int32), np.array([1], np.int32), lse)
    assert out.reshape(-1).tolist() == [1.0, 2.0]
    assert lse.item() == pytest.approx(1e4 / math.sqrt(2))


def test_attention_from_an_offset_is_the_tail_of_attention_from_the_start(ops, random):
    B, S, T, H, G, E = 2, 7, 3, 4, 2, 6
    query, key, value = (random.standard_normal((B, S, heads, E)) for heads in (H, G, G))
    starts = np.zeros((B, S), np.int32)
    starts[1, 5:] = 5
    whole, lse = np.empty((B, S, H, E)), np.empty((B, H, S))
    heads = AttentionArrays(query, key, value, whole)
    ops.attention(heads, starts, np.zeros(B, np.int32), lse)
    tail, tail_lse = np.empty((B, T, H, E)), np.empty((B, H, T))
    last = AttentionArrays(query[:, S - T :], key, value, tail)
    ops.attention(last, starts[:, S - T :], np.full(B, S - T, np.int32), tail_lse)
    np.testing.assert_allclose(tail, whole[:, S - T :], rtol=1e-12)
    np.testing.assert_allclose(tail_lse, lse[..., S - T :], rtol=1e-12)


def test_rope_keeps_lengths_and_depends_on_distance_alone(ops, random):
    query, key = random.standard_normal((2, 1, 8))
    table = ops.rope_table(64, 8, 10_000.0)

    def score(query_position, key_position):
        a, b = query.reshape(1, 1, 8).copy(), key.reshape(1, 1, 8).copy()
        ops.rope(a, np.array([query_position]), table)
        ops.rope(b, np.array([key_position]), table)
        assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(query))
        return float((a * b).sum())

    assert score(9, 4) == pytest.approx(score(63, 58))
    assert score(9, 4) != pytest.approx(score(9, 5))


# ---- flags and views


def test_gradients_are_overwritten_or_added_to_as_asked(ops, random):
    N, D, F, V = 5, 6, 7, 9
    x, dout = random.standard_normal((N, D)), random.standard_normal((N, F))
    ids = np.array([3, 0, 3, 8, 3], np.int32)
    norm = RmsNorm(x, random.standard_normal(D), 1e-5, x, random.random(N) + 0.5)
    dx = random.standard_normal((N, D))

    def linear(out, add):
        ops.linear_backward_weight(dout, x, out, accumulate=add)

    def embedding(out, add):
        ops.embedding_backward(ids, x, out, accumulate=add)

    def weight_of_norm(out, add):
        ops.rms_norm_backward(x, norm, NormGradients(dx.copy(), out, accumulate=add))

    def input_of_norm(out, add):
        ops.rms_norm_backward(x, norm, NormGradients(out, np.empty(D), add_to_dx=add))

    writers = {
        "linear": ((F, D), linear),
        "embedding": ((V, D), embedding),
        "norm's weight": ((D,), weight_of_norm),
        "norm's input": ((N, D), input_of_norm),
    }
    for name, (shape, write) in writers.items():
        fresh, before = np.full(shape, np.nan), random.standard_normal(shape)
        added = before.copy()
        write(fresh, False)
        write(added, True)
        np.testing.assert_allclose(added, before + fresh, rtol=1e-12, err_msg=name)


def test_a_row_that_no_id_names_gets_a_zero_gradient(ops, random):
    table = np.full((4, 2), np.nan)
    ops.embedding_backward(
        np.array([2, 2], np.int32), np.array([[1.0, 2.0], [3.0, 4.0]]), table, accumulate=False
    )
    assert table.tolist() == [[0, 0], [0, 0], [4, 6], [0, 0]]


def test_ops_write_into_views_of_packed_buffers(ops, random):
    packed = random.standard_normal((3, 10))
    gate, up = packed[:, :4], packed[:, 5:9]
    out, contiguous = np.zeros((3, 6)), np.empty((3, 4))
    ops.swiglu(gate, up, out[:, 1:5])
    ops.swiglu(gate.copy(), up.copy(), contiguous)
    assert np.array_equal(out[:, 1:5], contiguous)
    assert not out[:, [0, 5]].any()


# ---- optimizer


@pytest.mark.parametrize(("decay", "rate"), [(0.0, 1.0), (0.1, 1.0), (0.1, 2.5)])
def test_adamw_is_the_algorithm_of_the_paper(ops, random, decay, rate):
    values, moments = random.standard_normal(4), [np.zeros(4), np.zeros(4)]
    expected = [(value, 0.0, 0.0) for value in values]
    for step in range(1, 6):
        gradients = random.standard_normal(4)
        ops.move(
            "adamw",
            FlatState(values, values, gradients.copy()),
            moments,
            [ParameterRun(slice(None), decay > 0, rate)],
            AdamWConstants(0.9, 0.95, 1e-8, decay),
            np.array([1, 0.5, 0.01, step]),
        )
        for index, (value, first, second) in enumerate(expected):
            g = 0.5 * gradients[index]
            first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
            direction = (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.95**step)) + 1e-8)
            expected[index] = (value - rate * 0.01 * (direction + decay * value), first, second)
        np.testing.assert_allclose(values, [value for value, _, _ in expected], rtol=1e-13)
    np.testing.assert_allclose(moments, np.array(expected)[:, 1:].T, rtol=1e-13)


def test_adamw_leaves_the_gradients_and_the_float_type_alone():
    backend = ReferenceBackend(np.float32)
    values, gradients, first, second = (
        np.full(3, value, np.float32) for value in (1.0, 0.5, 0.0, 0.0)
    )
    flat = FlatState(values, values, gradients)
    runs = [ParameterRun(slice(None), decays=True)]
    constants = AdamWConstants(0.9, 0.95, 1e-8, 0.1)
    scalars = np.array([1, 1, 0.01, 1])
    backend.move("adamw", flat, (first, second), runs, constants, scalars)
    assert values.dtype == first.dtype == second.dtype == np.float32
    assert (gradients == 0.5).all()


def test_the_norm_of_a_long_float32_buffer_is_summed_in_float64():
    values = np.full(3_000_001, 0.1, np.float32)
    assert ReferenceBackend().squares(values).sum() == pytest.approx(
        3_000_001 * float(np.float32(0.1)) ** 2, rel=1e-12
    )


def test_backward_passes_recompute_the_output_and_may_overwrite_their_inputs(ops):
    random = np.random.default_rng(5)
    x, dout = random.standard_normal((2, 4, 6))
    weight, inverse_rms = random.standard_normal(6), np.empty(4)
    normed, dx, in_place = np.empty((3, 4, 6))
    norm = RmsNorm(x, weight, 1e-5, normed, inverse_rms)
    ops.rms_norm(norm)
    ops.rms_norm_backward(dout, norm, NormGradients(dx, np.empty(6)))
    again = dout.copy()
    ops.rms_norm_backward(again, norm, NormGradients(in_place, np.empty(6), out_ND=again))
    np.testing.assert_array_equal(in_place, dx)
    np.testing.assert_allclose(again, normed, rtol=1e-15)

    gate, up = x, dx.copy()
    product, dgate, dup = np.empty((3, 4, 6))
    ops.swiglu(gate, up, product)
    ops.swiglu_backward(dout, gate, up, dgate, dup)
    again, gate, up = dout.copy(), gate.copy(), up.copy()
    ops.swiglu_backward(again, gate, up, gate, up, again)
    np.testing.assert_array_equal(gate, dgate)
    np.testing.assert_array_equal(up, dup)
    np.testing.assert_allclose(again, product, rtol=1e-14)


def test_arrays_of_any_type_are_laid_out_on_multiples_of_16_bytes_and_read_back():
    values = [
        np.arange(5, dtype=np.int32),
        np.array([1.5, -2.5]),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    ]
    parts = offsets(values)
    flat = np.zeros(parts[-1].stop, np.uint8)
    for view, value in zip(views(flat, parts, values), values, strict=True):
        view[...] = value
    assert [part.start % 16 for part in parts] == [0, 0, 0]
    for part, value in zip(parts, values, strict=True):
        np.testing.assert_array_equal(flat[part].view(value.dtype).reshape(value.shape), value)


@pytest.mark.parametrize(("offset", "kept"), [(0, 3), (2, 2), (4, 0)])
def test_a_cache_takes_what_fits(ops, offset, kept):
    cache, new = np.zeros((1, 4, 1, 2)), np.ones((1, 3, 1, 2))
    ops.write_cache(cache, new, np.array([offset], np.int32))
    assert cache.sum() == 2 * kept
    assert not cache[0, :offset].any()
