"""Arrays laid out side by side in one block of memory.

The same code lays them out twice: in an arena without memory, which only counts, and in one with
as much as was counted. Plans, `nanoeuler info` and "rows that fit" read the count alone.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from nanoeuler.backend.records import Array

Arrays = TypeVar("Arrays")
ALIGNMENT = 256
"""Bytes: CUDA's own allocations start on multiples of it; a CPU's cache lines are shorter."""

NOTHING = bytes(16)
"""The one element that all elements of an array without memory are."""


class Allocator(Protocol):
    """Allocates an arena's memory."""

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array: ...


class Arena:
    """Hands out arrays one behind the other. All memory is zero at first."""

    def __init__(self, memory: Array | None = None):
        """`memory` is a flat array of bytes; without it the arena counts, and hands out arrays
        that have a shape and no memory."""
        self.memory, self.taken = memory, 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        start, size = self.taken, math.prod(shape) * dtype.itemsize
        self.taken += -(-size // ALIGNMENT) * ALIGNMENT
        if self.memory is None:
            return np.ndarray(shape, dtype, NOTHING, strides=(0,) * len(shape))
        return self.memory[start : start + size].view(dtype).reshape(shape)

    def overlay(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, Array]:
        """Two arrays in the same memory: the first is no longer read when the second is written."""
        start = self.taken
        first = self.empty(shape, dtype)
        self.taken = start
        return first, self.empty(shape, dtype)


def count_bytes(lay_out: Callable[[Arena], Any]) -> int:
    """The memory that `lay_out` takes."""
    arena = Arena()
    lay_out(arena)
    return arena.taken


def in_one_block(lay_out: Callable[[Arena], Arrays], allocator: Allocator) -> Arrays:
    """The arrays of `lay_out`, in one block of memory from `allocator`."""
    return lay_out(Arena(allocator.zeros((count_bytes(lay_out),), np.uint8)))
