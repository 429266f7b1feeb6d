"""The CUDA engine against the specification, on the device."""

import hashlib

import numpy as np
import pytest

from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_device_ops
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.check_form import PRESET_TOLERANCE, check_device_model, source_rows
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState

pytestmark = pytest.mark.gpu
SMALL = ModelConfig.from_dict({"preset": "small"})
FUSED = ModelConfig.from_dict(
    {"preset": "small", "ffn": 512}
)  # with 4,096 tokens in bf16 its products are fused on Hopper
GPT2 = ModelConfig.from_dict({"preset": "gpt2-tiny"})


def engine(*arguments, **fields):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(*arguments, **fields)


def state_of(backend, parameters=None, recompute=False, config=SMALL):
    return TrainingState(
        config,
        backend,
        initial_parameters(config, 1) if parameters is None else parameters,
        AdamW(0.9, 0.95, 1e-8, 0.1, 1.0),
        recompute=recompute,
    )


def digest(state):
    return hashlib.sha256(state.backend.to_host(state.parameters).tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("precision", "residual"),
    [("fp32", "fp32"), ("tf32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"), ("fp8", "bf16")],
)
def test_every_op_computes_what_the_specification_says(precision, residual):
    wrong = [
        comparison
        for comparison in check_device_ops(engine(precision, residual))
        if not comparison.error <= OP_TOLERANCE[precision]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("precision", "preset", "length"),
    [("fp32", "small", 128), ("fp32", "base", 512), ("tf32", "small", 128), ("bf16", "small", 128)],
)
def test_gradients_of_a_whole_model_are_those_of_the_specification(precision, preset, length):
    found = list(check_device_model(engine(precision), preset, 2, length))
    assert not [
        comparison
        for comparison in found
        if not comparison.error <= PRESET_TOLERANCE[precision][preset]
    ]


@pytest.mark.parametrize(
    ("precision", "config", "rows"),
    [
        ("fp32", SMALL, 8),
        ("bf16", SMALL, 8),
        ("bf16", FUSED, 32),
        ("fp8", FUSED, 32),
        ("fp8", GPT2, 32),
    ],
)
def test_equal_runs_end_with_equal_bits_with_and_without_graphs_and_recomputation(
    precision, config, rows
):
    ends, algorithms = set(), {}
    for graphs, recompute in ((True, False), (True, False), (False, False), (True, True)):
        backend = engine(precision, graphs=graphs)
        backend.algorithms.update(algorithms)
        state = state_of(backend, recompute=recompute, config=config)
        batch = source_rows(config, 2 * rows, 128, seed=5).rows(0)
        for _ in range(6):
            state.train_step(batch, rows, 1e-3)
        ends.add(digest(state))
        algorithms = dict(backend.algorithms)
    assert len(ends) == 1


def test_the_kernels_of_smaller_cards_compute_what_the_specification_says():
    backend = engine("bf16", portable=True)
    wrong = [
        comparison
        for comparison in check_device_ops(backend)
        if not comparison.error <= OP_TOLERANCE["bf16"]
    ]
    assert not wrong
    assert {attention.unit for attention in backend.attentions.values()} == {"bf16"}


def test_an_update_that_is_not_finite_is_left_out_and_counted_on_the_device():
    parameters = initial_parameters(SMALL, 1)
    parameters[-1] = np.nan  # of the last head
    state = state_of(engine("bf16"), parameters)
    before = digest(state)
    for _ in range(3):
        result = state.train_step(source_rows(SMALL, 8, 128, seed=5).rows(0), 8, 1e-3)
    assert not np.isfinite(result.gradient_norm)
    assert digest(state) == before
    assert state.step == 0
    assert state.backend.to_host(state.report)[1] == 3


def test_a_step_takes_no_memory_after_the_second():
    import cupy

    state = state_of(engine("bf16"))
    rows = source_rows(SMALL, 16, 128, seed=5).rows(0)
    used = []
    for _ in range(6):
        state.train_step(rows, 8, 1e-3)
        used.append(cupy.get_default_memory_pool().used_bytes())
    assert len(set(used[1:])) == 1
