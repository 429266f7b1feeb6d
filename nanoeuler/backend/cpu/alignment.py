"""Arrays that start at a cache line, so that loading a vector register touches one line.

NumPy asks Linux for pages of 2 MiB behind arrays of 4 MiB and more. That is why a pass takes one
block of memory for all its arrays: on pages of 4 kB it would wait for the processor's page tables.
"""

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
CACHE_LINE = 64


def aligned(make: Callable[..., Array], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array that starts at a cache line, in memory from `make` (`np.empty` or `np.zeros`)."""
    size = math.prod(shape) * dtype.itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_floats(shape: tuple[int, ...]) -> Array:
    """The same, of float32."""
    return aligned(np.empty, shape, np.dtype(np.float32))
