"""The engine on whatever adapter answers, a processor's too; without one its tests are skipped."""

import pytest

from nanoeuler.backend.webgpu.device import found


@pytest.fixture(scope="session")
def engine():
    if problem := found():
        pytest.skip(f"no WebGPU adapter answers here: {problem}")
    from nanoeuler.backend.webgpu.engine import WebGpuBackend

    return WebGpuBackend()


@pytest.fixture(scope="session")
def halves(engine):
    """The engine with activations in float16."""
    if not engine.device.has_halves:
        pytest.skip("the adapter reads no float16")
    return type(engine)("fp16")


@pytest.fixture(params=["fp32", "fp16"])
def either(request):
    return request.getfixturevalue({"fp32": "engine", "fp16": "halves"}[request.param])
