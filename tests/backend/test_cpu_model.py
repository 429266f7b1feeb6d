"""Whole models on the CPU engine.

Gradients and cached decoding are those of the float64 reference, the same threads give the same
bits, and a step allocates nothing.
"""

import functools
import inspect
import re
import tracemalloc

import numpy as np
import pytest

from nanoeuler.backend.cpu import (
    attention,
    blas,
    decoding,
    elementwise,
    fused_products,
    runtime,
    simd,
    training,
    vector_maps,
    vectors,
)
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows, TextStream
from tests.models import ODD

KERNELS = (
    attention,
    blas,
    decoding,
    elementwise,
    fused_products,
    runtime.transpose.py_func,
    simd,
    training,
    vector_maps,
    vectors,
)
OPTIMIZER = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)


def step_rows(config: ModelConfig, rows: int, length: int, seed: int = 1) -> StepRows:
    random = np.random.default_rng(seed)
    tokens = random.integers(1, config.vocab_size, 4 * rows * length).astype(np.int32)
    tokens[:: length // 3 + 5] = 0  # documents end here and there
    weights = config.mtp_weights
    return TextStream(tokens, length, rows * length, weights, 0, True, seed, "test").rows(0)


def trained(
    config: ModelConfig, backend: Backend, rows: StepRows, micro_batch_rows: int, steps: int = 1
) -> TrainingState:
    state = TrainingState(config, backend, initial_parameters(config, 1), OPTIMIZER)
    for _ in range(steps):
        state.train_step(rows, micro_batch_rows, 1e-2)
    return state


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def worst_gradient(config: ModelConfig, found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative error of any tensor's gradient."""
    ours, theirs = FlatBuffer(config, found), FlatBuffer(config, expected)
    return max(relative_error(ours[row.name], theirs[row.name]) for row in ours.table)


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_the_small_model_are_the_references(threads):
    config = ModelConfig.from_dict({"preset": "small"})
    rows = step_rows(config, 4, 128)
    found = trained(config, CpuBackend(threads), rows, 2)
    expected = trained(config, ReferenceBackend(np.float64), rows, 4)
    # reached: 8.2e-7; the reference in float32 reaches 7.8e-7
    assert worst_gradient(config, found.gradients, expected.gradients) <= 1e-6


@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_an_odd_model_are_the_references(threads):
    config = ModelConfig.from_dict(ODD)
    rows = step_rows(config, 3, 37)
    found = trained(config, CpuBackend(threads), rows, 1)
    expected = trained(config, ReferenceBackend(np.float64), rows, 3)
    assert worst_gradient(config, found.gradients, expected.gradients) <= 1e-6


def share_everything(monkeypatch):
    """Have threads share the work of every op, however small, as they do for a large model."""
    monkeypatch.setattr("nanoeuler.backend.cpu.runtime.COPIES_BYTES", 0)
    for name in ("LEAST_ELEMENTS", "LEAST_PRODUCT"):
        monkeypatch.setattr(f"nanoeuler.backend.cpu.engine.{name}", 1)


def test_gradients_of_a_model_whose_threads_share_each_op(monkeypatch):
    share_everything(monkeypatch)
    config = ModelConfig.from_dict({"preset": "small", "layers": 1})
    rows = step_rows(config, 2, 128)
    state = trained(config, CpuBackend(3), rows, 2)
    assert len(state.models) == 1
    expected = trained(config, ReferenceBackend(np.float64), rows, 2)
    assert worst_gradient(config, state.gradients, expected.gradients) <= 1e-6


@pytest.mark.parametrize("logits_at_once", [1 << 28, 100_000])
def test_gradients_where_few_tokens_have_a_target_are_the_references(monkeypatch, logits_at_once):
    monkeypatch.setattr(ReferenceBackend, "logits_at_once", logits_at_once)
    config = ModelConfig.from_dict({"preset": "small", "layers": 1})
    rows = step_rows(config, 8, 128)
    rows.targets[:, : 128 - 50] = -1
    rows.weights[rows.targets < 0] = 0
    backend = CpuBackend(2)
    assert len(backend.few_targets(rows.targets.reshape(-1, config.mtp_heads))) == 8 * 50
    state = TrainingState(config, backend, initial_parameters(config, 1), OPTIMIZER)
    found = state.train_step(rows, 4, 1e-2)
    parameters = initial_parameters(config, 1)
    reference = TrainingState(config, ReferenceBackend(np.float64), parameters, OPTIMIZER)
    expected = reference.train_step(rows, 8, 1e-2)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.first_head_loss == pytest.approx(expected.first_head_loss, rel=1e-6)
    assert worst_gradient(config, state.gradients, reference.gradients) <= 1e-6


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_layers_of_the_base_model_at_1024_tokens(threads):
    """Two of its 16 layers, so that the suite stays short.

    `nanoeuler check --device cpu` takes all of them.
    """
    config, rows, expected = long_rows()
    found = trained(config, CpuBackend(threads), rows, 1)
    assert worst_gradient(config, found.gradients, expected) <= 3e-6


@functools.cache  # once for all numbers of threads
def long_rows() -> tuple[ModelConfig, StepRows, np.ndarray]:
    """A model with long rows, a step of it, and the gradients that the reference finds."""
    sizes = {"layers": 2, "vocab_size": 256, "context": 1024}
    config = ModelConfig.from_dict({"preset": "base", **sizes})
    rows = step_rows(config, 1, 1024)
    return config, rows, trained(config, ReferenceBackend(np.float64), rows, 1).gradients


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_threads_give_the_same_bits(threads):
    config = ModelConfig.from_dict({"preset": "small", "layers": 2})
    rows = step_rows(config, 8, 64)
    first, second = (trained(config, CpuBackend(threads), rows, 2, steps=3) for _ in range(2))
    np.testing.assert_array_equal(first.parameters, second.parameters)


def test_another_number_of_threads_changes_only_rounding():
    config = ModelConfig.from_dict({"preset": "small", "layers": 2})
    rows = step_rows(config, 6, 64)
    one, three = (trained(config, CpuBackend(threads), rows, 1) for threads in (1, 3))
    assert worst_gradient(config, three.gradients, one.gradients) <= 1e-6


def test_an_engine_with_more_threads_than_rows_leaves_no_stale_gradient_behind():
    config = ModelConfig.from_dict(ODD)
    rows = step_rows(config, 3, 37)
    fewer = step_rows(config, 1, 37, seed=2)
    state = trained(config, CpuBackend(3), rows, 1)
    state.parameters[...] = initial_parameters(config, 1)
    state.train_step(fewer, 1, 0.0)
    expected = TrainingState(config, CpuBackend(3), initial_parameters(config, 1), OPTIMIZER)
    expected.train_step(fewer, 1, 0.0)
    np.testing.assert_array_equal(state.gradients, expected.gradients)


def test_a_forward_pass_reads_parameters_that_were_written_from_outside(monkeypatch):
    monkeypatch.setattr(blas, "installed_mkl", lambda: None)  # MKL needs no transposes
    config = ModelConfig.from_dict({"preset": "small", "layers": 1})
    rows = step_rows(config, 4, 128)
    state = trained(config, CpuBackend(2), rows, 2)
    assert state.model.training_weights is not state.model.weights
    state.parameters *= 2
    state.compute_gradients(4)
    expected = TrainingState(config, CpuBackend(2), state.parameters.copy(), OPTIMIZER)
    expected.stage(rows)
    expected.compute_gradients(4)
    np.testing.assert_array_equal(state.gradients, expected.gradients)


@pytest.mark.parametrize("share", [False, True])
def test_a_step_allocates_nothing(monkeypatch, share):
    """Neither arrays of NumPy, nor memory in compiled functions.

    NumPy reports its arrays to tracemalloc; Python's own small objects stay under 50 kB. Compiled
    functions report nothing, so their source may not ask for memory at all.
    """
    if share:
        share_everything(monkeypatch)
    config = ModelConfig.from_dict({"preset": "small", "layers": 2})
    rows = step_rows(config, 4, 128)
    state = trained(config, CpuBackend(2), rows, 1, steps=2)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        state.train_step(rows, 1, 1e-3)
        peak = tracemalloc.get_traced_memory()[1]
        # the smallest temporary array of an op would be 128 tokens of 128 floats: 65 kB
        assert peak - before < 50_000
    finally:
        tracemalloc.stop()
    for kernels in KERNELS:
        source = inspect.getsource(kernels)
        assert not re.search(r"np\.(empty|zeros|ones|full|copy)|_like\(", source)


def test_all_targets_masked_gives_no_gradient():
    config = ModelConfig.from_dict(ODD)
    rows = step_rows(config, 2, 37)
    rows.targets[...] = -1
    assert not trained(config, CpuBackend(2), rows, 1).gradients.any()


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_decoding_a_token_at_a_time_gives_what_the_reference_reads_at_once(rows):
    config = ModelConfig.from_dict(ODD)
    parameters = 2 * initial_parameters(config, 1)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, (rows, 30))
    reference = Transformer(config, parameters.astype(np.float64), ReferenceBackend(np.float64))
    expected = extend(reference, reference.new_cache(rows, 40), tokens, every=True)
    model = Transformer(config, parameters, CpuBackend(2))
    cache = model.new_cache(rows, 40)
    counts = np.arange(rows) % 7 + 12
    logits = extend(model, cache, tokens[:, :20], counts)
    for b, count in enumerate(counts):
        assert relative_error(logits[b], expected[b, count - 1]) <= 2e-6
    for _ in range(10):
        following = tokens[np.arange(rows), cache.lengths][:, None]
        logits = extend(model, cache, following, every=True)[:, 0]
    for b, length in enumerate(cache.lengths):
        assert relative_error(logits[b], expected[b, length - 1]) <= 2e-6
