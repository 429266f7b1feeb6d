"""Device memory in which the kernels of one op hand results to each other.

There is one buffer for each purpose, sliced anew at every call. It grows to the largest call and
serves smaller ones from its front, so that a change of the number of rows takes no further memory.

Two calls may share a buffer because an engine's kernels run one after another on one stream: a
kernel that starts ahead of the end of the one before waits for it before it writes
(overlap.cuh). Nothing in a buffer outlives its op.

A CUDA graph holds the addresses of the buffers that were sliced while it was recorded. A buffer
that has to grow is therefore not moved: a new one takes its place for later calls, and the old
one stays as long as someone holds it. `recording` hands it to the owner of the graph; once that is
gone, too, so is the buffer. What the stream still has to do with memory that is given back comes
before whatever takes it next, as the memory pool hands it out in the order of the stream.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cupy import ndarray as Array


Part = tuple[tuple[int, ...], np.dtype | type[np.generic]]
"""Shape and element type."""

BORDER = 256
"""Bytes: every part starts on a multiple, as memory straight from the pool does."""


class Scratch:
    def __init__(self, allocate: Callable[[int], Array]):
        """`allocate(n)` gives an array of n bytes."""
        self.allocate = allocate
        self.buffers: dict[str, Array] = {}
        self.recorded: list[Array] | None = None

    def take(self, purpose: str, *parts: Part) -> list[Array]:
        """Arrays of these shapes and types, side by side, until the next call for `purpose`."""
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in parts]
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // BORDER) * BORDER)
        buffer = self.buffers.get(purpose)
        if buffer is None or buffer.nbytes < starts[-1]:
            buffer = self.buffers[purpose] = self.allocate(starts[-1])
        if self.recorded is not None and all(buffer is not other for other in self.recorded):
            self.recorded.append(buffer)
        return [
            buffer[start : start + size].view(dtype).reshape(shape)
            for start, size, (shape, dtype) in zip(starts, sizes, parts, strict=False)
        ]

    @contextmanager
    def recording(self) -> Iterator[list[Array]]:
        """Collects the buffers that are sliced meanwhile, for whoever keeps the recorded work."""
        held: list[Array] = []
        self.recorded = held
        try:
            yield held
        finally:
            self.recorded = None


ALIGNMENT = 16
"""Bytes: each array starts on a multiple."""


def views(flat: Any, parts: Sequence[slice], arrays: Sequence[np.ndarray]) -> list[Any]:
    """The `parts` of a flat array of bytes, of any library, with the shapes and types of
    `arrays`."""
    pairs = zip(parts, arrays, strict=True)
    return [flat[part].view(array.dtype).reshape(array.shape) for part, array in pairs]


def offsets(values: Sequence[np.ndarray]) -> list[slice]:
    """The bytes of a flat array that `values` take, one after another."""
    sizes = [-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
    starts = [0, *itertools.accumulate(sizes)]
    return [
        slice(start, start + value.nbytes) for start, value in zip(starts, values, strict=False)
    ]
