"""The kernels of activations without a fused path: ReLU² and GEGLU."""

from functools import partial

import pytest
from test_kernel_sources import ARCHITECTURES, TYPES, compile_source, resources

from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_elementwise, check_geglu
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.check_form import check_form

CHECKS = {"relu2": partial(check_elementwise, "relu2"), "geglu": check_geglu}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("op", CHECKS)
def test_they_compile_without_spilling_registers(architecture, types, op):
    source = KernelSources(*TYPES[types]).elementwise(op, 2048)
    kernels = resources(compile_source(source, architecture))
    assert set(kernels) == {op, f"{op}_backward"}
    assert all(spilled == shared == 0 for _, spilled, shared in kernels.values())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp8"])
@pytest.mark.parametrize("op", CHECKS)
def test_a_gpu_computes_what_the_specification_says(precision, op):
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend(precision), Random(3)
    rows = [
        row
        for size in [(1, 8), (37, 344), (4_133, 2048)]
        for row in CHECKS[op](engine, random, *size)
    ]
    assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []
    config = ModelConfig.from_dict({"preset": "base", "activation": op})
    assert [row for row in check_form(engine, config) if not row.passed] == []
