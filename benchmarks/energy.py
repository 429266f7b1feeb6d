"""The energy that a GPU has taken, by its own counter (nvmlDeviceGetTotalEnergyConsumption)."""

import ctypes
import functools


@functools.cache
def device() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML and the first GPU; None where there is no such library or counter."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
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
