"""Launching a kernel ahead of the end of the one before it, through the driver's own call: CuPy's launches have no attributes.

(Programmatic dependent launch, compute capability 9.0 up; overlap.cuh says what the kernels do with it.) Under capture the launch becomes
an edge of that kind in the graph.
"""

import ctypes
import functools
from typing import Any

import numpy as np

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launch_early(
    function: Any,
    grid: tuple[int, ...],
    threads: int,
    arguments: tuple[Any, ...],
    shared: int,
    stream: Any,
) -> None:
    """Launch a CuPy `RawKernel`, which may start before the kernel in front of it on `stream` has ended. `arguments`: arrays and NumPy's scalars."""
    values = [
        ctypes.c_void_p(value.data.ptr)
        if hasattr(value, "data") and hasattr(value.data, "ptr")
        else scalar(value)
        for value in arguments
    ]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    attribute = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1, b"")
    launch = Launch(
        (*grid, 1, 1)[:3], (threads, 1, 1), shared, stream.ptr, ctypes.pointer(attribute), 1
    )
    status = driver().cuLaunchKernelEx(
        ctypes.byref(launch), ctypes.c_void_p(function.kernel.ptr), pointers, None
    )
    if status:
        raise RuntimeError(f"cuLaunchKernelEx failed with status {status}")


def scalar(value: np.generic) -> Any:
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
