"""The GPT-2 family on a GPU: its kernels compile, and compute what the specification says."""

import numpy as np
import pytest
from test_kernel_sources import ARCHITECTURES, TYPES, compile_source, resources

from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.decoded_layer import (
    CACHES,
    GPT2_SHAPES,
    MANY_ROWS,
    SEVERAL,
    check_decode,
)
from nanoeuler.model.checks.engine_ops import (
    OP_TOLERANCE,
    check_embedding_at,
    check_linear_gelu,
    check_norm,
)
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.check_form import (
    PRESET_TOLERANCE,
    check_device_model,
    check_form,
    check_reading,
    source_rows,
)
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState

TINY = ModelConfig.from_dict({"preset": "gpt2-tiny"})
PRECISIONS = [("fp32", "fp32"), ("tf32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
def test_its_kernels_compile_without_spilling_registers(architecture, types):
    sources = KernelSources(*TYPES[types])
    choice = sources.sampling(50_257, clusters=architecture == "sm_90a")
    for source in (*sources.gpt2(768, 12, 3072), choice):
        kernels = resources(compile_source(source, architecture))
        assert kernels, source.name
        for name, (_, spilled, shared) in kernels.items():
            assert spilled == 0, f"{name} spills {spilled} bytes"
            assert shared <= 48 * 1024, name


def engine(*arguments):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "residual"), PRECISIONS)
def test_its_ops_compute_what_the_specification_says(precision, residual):
    ops, random, rows = engine(precision, residual), Random(3), []
    for size in [(1, 8), (37, 256), (301, 768), (1000, 1024), (5, 2048), (70, 1600)]:
        rows += check_norm("layer_norm", ops, random, *size)
    for size in [(1, 8, 24), (37, 128, 344), (700, 768, 3072), (4_133, 200, 512)]:
        rows += check_linear_gelu(ops, random, *size)
    for size in [(1, 8, 16, 3), (2500, 128, 40, 512)]:
        rows += check_embedding_at(ops, random, *size)
    assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "residual"), PRECISIONS)
def test_its_decoded_layers_compute_what_the_specification_says(precision, residual):
    """A result in bf16 keeps 8 bits. Of the ten in a row on the way through a layer, each adds at
    most 2e-3, together √10 times that where none cancels; a wrong element of 768 more than 3e-2."""
    ops, random, rows = engine(precision, residual), Random(4), []
    one = [(B, S, 1) for B, S in CACHES]
    for index, (B, S, T) in enumerate(one + SEVERAL + MANY_ROWS):
        shape = GPT2_SHAPES[index % len(GPT2_SHAPES)]
        rows += check_decode(ops, random, B, S, shape, tokens=T)
    assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []
    assert [row for row in rows if "composed" in row.case] == []


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "residual"), PRECISIONS)
def test_a_small_model_trains_as_the_specification_says(precision, residual):
    fields = {"mtp_heads": 2, "ffn": 341, "step_size": 0.5, "tied": False}
    for more in ({}, fields):
        config = ModelConfig.from_dict({"preset": "gpt2-tiny"} | more)
        rows = list(check_form(engine(precision, residual), config))
        assert [row for row in rows if not row.passed] == []


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_gradients_and_reading_of_the_preset(precision):
    limit = PRESET_TOLERANCE[precision]["base"]  # NumPy's float32 reaches 6e-7
    rows = list(check_device_model(engine(precision), "gpt2-tiny", 2, 128))
    rows += check_reading(engine(precision), "gpt2-tiny", 100)
    assert [row for row in rows if not row.error <= limit] == []


@pytest.mark.gpu
def test_a_recorded_step_repeats_to_the_bit():
    digests = []
    for _ in range(2):
        ops = engine("bf16", "bf16")
        optimizer = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
        state = TrainingState(TINY, ops, initial_parameters(TINY, 1), optimizer)
        stream = source_rows(TINY, 8, 128, seed=5)
        for step in range(4):
            state.train_step(stream.rows(step), 8, 1e-3)
        digests.append(ops.to_host(state.parameters).tobytes())
    assert digests[0] == digests[1]


@pytest.mark.gpu
def test_greedy_tokens_are_those_of_the_reference():
    parameters = initial_parameters(TINY, 1)
    tokens = np.arange(9, dtype=np.int32)[None] * 5
    written = []
    for ops in (engine("fp32", "fp32"), ReferenceBackend(np.float64)):
        model = Transformer(TINY, ops.from_host(parameters), ops)
        cache, logits = model.new_cache(1, 60), None
        found = [tokens]
        for _ in range(40):
            logits = ops.to_host(extend(model, cache, found[-1]))
            found.append(logits.argmax(axis=1).astype(np.int32)[None])
        written.append(np.concatenate(found, axis=1))
    assert np.array_equal(*written)
