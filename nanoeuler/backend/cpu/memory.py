"""Where arrays lie: each at the start of a cache line, so that a vector register's worth never lies on two, and those of a pass side by side.

NumPy asks Linux for pages of 2 MiB behind arrays of 4 MiB and more. A pass over hundreds of smaller ones waits for the tables of their 4 kB pages.
"""

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
CACHE_LINE = 64


def aligned(make: Callable[..., Array], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array that starts at a cache line, in memory from `make`."""
    size = math.prod(shape) * dtype.itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
