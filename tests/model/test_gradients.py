"""The backward pass: numerical derivatives, float32, micro-batches, and the padding."""

import itertools

import numpy as np
import pytest

from nanoeuler.backend.records import AdamWConstants, FlatState, LogitRows, ParameterRun
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import compare, complex_step, finite_difference
from nanoeuler.model.checks.model_gradients import CASES, TINY, Example, check_all, check_model
from nanoeuler.model.checks.op_gradients import check_ops
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters, model_weights
from nanoeuler.model.spec import storage_elements, tensor_table, trained_table
from nanoeuler.model.transformer import Batch, Transformer


def gradient(model, batch, targets, weights, gradients=None, accumulate=False):
    """Flat gradient of −Σ weights · logprobs, as a trainer computes it.

    `targets` and `weights` are (B, T, K).
    """
    ops = model.backend
    gradients = ops.zeros(model.parameters.shape) if gradients is None else gradients
    rows_targets, rows_weights = targets.reshape(-1), ops.from_host(weights.reshape(-1))
    logprobs, lse = ops.empty(rows_targets.shape), ops.empty(rows_targets.shape)
    buffers = model.forward(batch, training=True)
    logits = model.heads.logits(model.weights.heads, buffers)
    rows = LogitRows(logits, rows_targets, logprobs, lse, rows_weights)
    ops.cross_entropy(rows)
    ops.cross_entropy_backward(rows)
    model.backward(batch, buffers, model_weights(model.config, gradients), accumulate=accumulate)
    return gradients


def random_task(config, rows, length, seed=2):
    """A batch, targets with some masked, and weights that sum to 1.

    The batch has a document border in its last row.
    """
    random = np.random.default_rng(seed)
    ids = random.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    starts = np.zeros((rows, length), np.int32)
    starts[-1, length // 2 :] = length // 2
    shape = rows, length, config.mtp_heads
    targets = random.integers(0, config.vocab_size, shape).astype(np.int32)
    targets[random.random(shape) < 0.1] = -1
    weights = random.random(shape)
    batch = Batch(ids, np.arange(length, dtype=np.int32) - starts, starts)
    return batch, targets, weights / weights.sum()


# ---- numerical derivatives


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_every_case_agrees_with_complex_steps(case):
    comparisons = list(check_model(case))
    config = ModelConfig.from_dict(TINY | CASES[case][0])
    assert [comparison.tensor for comparison in comparisons] == [
        tensor.name for tensor in trained_table(config)
    ]
    assert [comparison for comparison in comparisons if not comparison.passed] == []
    # what the steps reach, far below the limit
    assert max(comparison.error for comparison in comparisons) < 1e-13


@pytest.mark.parametrize("case", CASES)
def test_a_pass_that_resumes_where_a_tensor_is_read_gives_the_loss_of_a_whole_one(case):
    example = Example(case, ReferenceBackend(np.float64))
    for tensor in example.parameters.table:
        example.loss()
        values = example.parameters[tensor.name]
        values *= 1.1
        resumed = example.loss(example.first_reader(tensor.name))
        assert resumed == example.loss(), tensor.name


def test_every_op_agrees_with_finite_differences():
    comparisons = list(check_ops())
    assert {comparison.case for comparison in comparisons} == {
        "linear",
        "embedding",
        "add_rms_norm",
        "rope",
        "attention",
        "attention with a cap",
        "swiglu",
        "cross_entropy",
        "preference",
        "bias",
        "embedding_at",
        "add_layer_norm",
        "gelu",
        "relu2",
        "geglu",
        "soft_cap",
    }
    assert max(comparison.error for comparison in comparisons) < 1e-10


def test_the_quick_form_leaves_no_tensor_without_a_gradient():
    # one token alone, for instance, has no gradient in its query and key weights, so no mistake
    # would show there
    comparisons = list(check_all(quick=True))
    assert all(0 < comparison.error < 1e-9 for comparison in comparisons)


def test_the_cases_cover_what_the_model_can_vary():
    configs = [ModelConfig.from_dict(TINY | fields) for fields, _ in CASES.values()]
    lengths = [length for _, length in CASES.values()]
    assert {config.tied for config in configs} == {True, False}
    assert any(config.head_size * config.heads != config.dim for config in configs)
    assert {config.heads // config.kv_heads for config in configs} >= {1, 2, 4}
    assert any(config.step_size != 1 for config in configs)
    assert any(len(set(config.mtp_weights)) > 1 for config in configs)
    assert {config.mtp_heads for config in configs} >= {1, 2, 3, 4}
    assert all(length % 2 for length in lengths)
    assert all(
        config.ffn_storage != config.ffn and config.vocab_storage != config.vocab_size
        for config in configs
    )


def test_a_comparison_fails_above_the_limit_and_for_what_is_no_number():
    numeric = np.array([3.0, 4.0])
    assert compare("case", "tensor", numeric * (1 + 9e-10), numeric).passed
    assert not compare("case", "tensor", numeric * (1 + 2e-9), numeric).passed
    assert not compare("case", "tensor", numeric * np.nan, numeric).passed
    assert compare("case", "tensor", np.zeros(2), np.zeros(2)).passed
    almost_zero = np.array([0.0, 1e-12])
    assert not compare("case", "tensor", almost_zero, np.zeros(2)).passed


def test_finite_differences_are_exact_for_a_polynomial_of_degree_four_and_leave_the_values():
    values = np.array([0.5, -1.0])
    derivative = finite_difference(lambda: float((values**4).sum()), values)
    assert derivative == pytest.approx(4 * values**3, rel=1e-11)
    assert values.tolist() == [0.5, -1.0]


def test_complex_steps_are_exact_and_leave_the_values():
    values = np.array([0.5 + 0j, -1.0])
    derivative = complex_step(lambda: np.exp(values).sum(), values)
    assert derivative == pytest.approx(np.exp([0.5, -1.0]), rel=1e-15)
    assert values.tolist() == [0.5, -1.0]


# ---- float32, micro-batches, padding


def test_float32_gradients_of_small_follow_float64():
    config = ModelConfig.from_dict({"preset": "small"})
    task = random_task(config, 2, 128)
    parameters = initial_parameters(config, 1)

    def gradient_in(dtype):
        backend = ReferenceBackend(dtype)
        model = Transformer(config, backend.from_host(parameters), backend)
        return FlatBuffer(config, gradient(model, *task))

    narrow, wide = gradient_in(np.float32), gradient_in(np.float64)
    for tensor in narrow.table:
        exact = wide[tensor.name]
        difference = np.linalg.norm(narrow[tensor.name] - exact)
        # 24 bits, and sums over 256 tokens and 128 to 341 elements in a row: about 8e-7 in the
        # worst tensor
        assert difference < 1.5e-6 * np.linalg.norm(exact), tensor.name


@pytest.mark.parametrize("fields", [{}, {"tied": True}], ids=["untied", "tied"])
def test_micro_batches_add_up_to_the_whole_batch(make_model, fields):
    model = make_model(**fields)
    batch, targets, weights = random_task(model.config, 6, 5)
    whole = gradient(model, batch, targets, weights)
    parts = np.full_like(whole, np.nan)  # the first micro-batch overwrites whatever is there
    for tensor in tensor_table(model.config):
        stored = parts[tensor.offset : tensor.stop].reshape(tensor.storage_shape)
        stored[...] = 0
        stored[tuple(slice(size) for size in tensor.shape)] = np.nan
    for start, stop in itertools.pairwise((0, 1, 3, 6)):
        part = slice(start, stop)
        rows = Batch(batch.ids[part], batch.positions[part], batch.starts[part])
        gradient(model, rows, targets[part], weights[part], parts, accumulate=start > 0)
    a, b = FlatBuffer(model.config, parts), FlatBuffer(model.config, whole)
    for tensor in a.table:  # float64, sums in another order
        np.testing.assert_allclose(a[tensor.name], b[tensor.name], rtol=1e-9, atol=1e-13)


def test_masked_targets_give_no_gradient(make_model):
    model = make_model()
    batch, targets, weights = random_task(model.config, 2, 5)
    assert not gradient(model, batch, np.full_like(targets, -1), weights).any()
    targets[:, :, 2] = -1
    buffer = FlatBuffer(model.config, gradient(model, batch, targets, weights))
    assert not buffer["mtp_heads.2.weight"].any()
    assert buffer["mtp_heads.1.weight"].any()


def test_padding_stays_zero_through_training_steps():
    config = ModelConfig.from_dict(TINY)  # odd ffn and vocabulary: every kind of padding
    backend = ReferenceBackend()
    parameters = initial_parameters(config, 1)
    model = Transformer(config, parameters, backend)
    moments = [np.zeros_like(parameters) for _ in range(2)]
    before = parameters.copy()
    for step in range(1, 4):
        gradients = gradient(model, *random_task(config, 2, 5, seed=step))
        backend.move(
            "adamw",
            FlatState(parameters, parameters, gradients),
            moments,
            [ParameterRun(slice(None), decays=True)],
            AdamWConstants(0.9, 0.95, 1e-8, 0.1),
            np.array([1, 0.7, 1e-2, step]),
        )
    inside = np.zeros(storage_elements(tensor_table(config)), bool)
    for tensor in tensor_table(config):
        stored = inside[tensor.offset : tensor.stop].reshape(tensor.storage_shape)
        stored[tuple(slice(size) for size in tensor.shape)] = True
    assert (~inside).sum() > 100
    for values in (parameters, gradients, *moments):
        assert not values[~inside].any()
    assert (parameters[inside] != before[inside]).mean() > 0.99


def test_a_training_step_lays_out_its_buffers_once(make_model):
    model = make_model()
    batch, targets, weights = random_task(model.config, 2, 5)
    gradient(model, batch, targets, weights)
    first = model.buffers(2, 5, training=True)
    gradient(model, batch, targets, weights)
    assert model.buffers(2, 5, training=True) is first
