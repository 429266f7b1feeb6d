"""The kernels of GEGLU, and those that scale a stream and find where windows start."""

import numpy as np
import pytest
from test_kernel_sources import ARCHITECTURES, TYPES, compile_source, resources

from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_geglu
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.check_form import check_form


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
def test_they_compile_without_spilling_registers(architecture, types):
    source = KernelSources(*TYPES[types]).elementwise("geglu", 2048)
    kernels = resources(compile_source(source, architecture))
    assert set(kernels) == {"geglu", "geglu_backward"}
    assert all(spilled == shared == 0 for _, spilled, shared in kernels.values())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp8"])
def test_a_gpu_computes_what_the_specification_says(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend(precision), Random(3)
    rows = [
        row
        for size in [(1, 8), (37, 344), (4_133, 2048)]
        for row in check_geglu(engine, random, *size)
    ]
    assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []
    fields = {"activation": "geglu", "embedding_scale": 27.7, "windows": [64, 0]}
    config = ModelConfig.from_dict({"preset": "base"} | fields)
    assert [row for row in check_form(engine, config) if not row.passed] == []


@pytest.mark.gpu
def test_a_window_starts_where_the_specification_says():
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend("fp32"), np.random.default_rng(1)
    starts = np.sort(random.integers(0, 300, (5, 301)).astype(np.int32))
    offset = random.integers(0, 9000, 5).astype(np.int32)
    expected, out = np.empty_like(starts), engine.empty(starts.shape, np.int32)
    ReferenceBackend(np.float32).window_starts(starts, offset, 77, 8000, expected)
    engine.window_starts(*map(engine.from_host, (starts, offset)), 77, 8000, out)
    np.testing.assert_array_equal(engine.to_host(out), expected)
