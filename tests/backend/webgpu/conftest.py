"""The engine on whatever adapter answers, a processor's too; without one its tests are skipped."""

import pytest

from nanoeuler.backend.webgpu.device import found


@pytest.fixture(scope="session")
def engine():
    if problem := found():
        pytest.skip(f"no WebGPU adapter answers here: {problem}")
    from nanoeuler.backend.webgpu.engine import WebGpuBackend

    return WebGpuBackend()
