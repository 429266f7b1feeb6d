"""The energy that a GPU has taken, by its own counter (nvmlDeviceGetTotalEnergyConsumption)."""

import ctypes
import functools


@functools.cache
def device() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML and the GPU that this thread computes on; None without a GPU, library or counter.

    NVML numbers all GPUs of the machine, by their PCI address. CUDA numbers those that
    CUDA_VISIBLE_DEVICES lets it see, the fastest first. The address is the same for both.
    """
    try:
        import cupy

        library = ctypes.CDLL("libnvidia-ml.so.1")
        address = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice())
    except (ImportError, OSError, RuntimeError):
        return None
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
        address.encode(), ctypes.byref(handle)
    ):
        return None
    return (
        None
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        else (library, handle)
    )


def joules() -> float:
    """Joules since the driver was loaded; NaN without a counter.

    The counter advances every few tens of milliseconds and lags: measure seconds.
    """
    found = device()
    if not found:
        return float("nan")
    library, handle = found
    millijoules = ctypes.c_ulonglong()
    library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return millijoules.value / 1e3
