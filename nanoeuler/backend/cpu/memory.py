"""Where arrays lie: each at the start of a cache line, so that a vector register's worth never lies on two, and those of a pass side by side.

NumPy asks Linux for pages of 2 MiB behind arrays of 4 MiB and more. A pass over hundreds of smaller ones waits for the tables of their 4 kB pages.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
CACHE_LINE = 64


def aligned(make: Callable[..., Array], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array that starts at a cache line, in memory from `make`."""
    size = math.prod(shape) * dtype.itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class Block:
    """Hands out arrays one behind the other from `memory`, bytes that are zero; without memory it counts what they would take."""

    def __init__(self, memory: Array | None):
        self.memory, self.taken = memory, 0

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array | None:
        dtype = np.dtype(dtype or np.float32)
        size, start = math.prod(shape) * dtype.itemsize, self.taken
        self.taken += -(-size // CACHE_LINE) * CACHE_LINE
        return (
            None
            if self.memory is None
            else self.memory[start : start + size].view(dtype).reshape(shape)
        )

    zeros = empty
