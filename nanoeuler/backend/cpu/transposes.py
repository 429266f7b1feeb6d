"""Transposes of the weights, for the forward pass of training.

For x Wᵀ, BLAS first copies W into an order of its own. OpenBLAS copies one number at a time from a
W that is stored by rows, and whole vectors from one that is stored by columns, which makes the
product a tenth faster. A training step makes the transposes once and uses them for all its slices.
"""

import copy

import numpy as np

from nanoeuler.backend.cpu.alignment import aligned_floats
from nanoeuler.backend.cpu.thread_pool import ThreadPool
from nanoeuler.backend.records import ModelWeights
from nanoeuler.system.compiling import compiled

Array = np.ndarray
BLOCK = 16
"""Rows and columns transposed at a time: the 2 · 16 cache lines stay in the first-level cache."""


@compiled()
def transpose(source_OI, target_IO, first, stop):
    """target[:, first:stop] = source[first:stop]ᵀ"""
    inputs = source_OI.shape[1]
    for o in range(first, stop, BLOCK):
        for i in range(0, inputs, BLOCK):
            for column in range(i, min(i + BLOCK, inputs)):
                for row in range(o, min(o + BLOCK, stop)):
                    target_IO[column, row] = source_OI[row, column]


class Transposes:
    """Weights of a model whose matrices are views (out, in) of memory that holds (in, out)."""

    def __init__(self, source: ModelWeights, threads: ThreadPool):
        """Updates change `source`; `refresh` brings the transposes up to date."""
        self.source, self.thread_pool = source, threads
        self.pairs: list[tuple[Array, Array]] = []

        def transposed(weight_OI: Array) -> Array:
            self.pairs.append((weight_OI, aligned_floats(weight_OI.shape[::-1])))
            return self.pairs[-1][1].T

        self.weights = copy.copy(source)
        self.weights.blocks = [copy.copy(block) for block in source.blocks]
        for block in self.weights.blocks:
            for name, array in vars(block).items():
                if isinstance(array, np.ndarray) and array.ndim == 2:
                    setattr(block, name, transposed(array))
        self.weights.heads = transposed(source.heads)

    def refresh(self) -> None:
        """Transpose the source again; each thread takes some rows of each matrix."""

        def work(part: int) -> None:
            for source, target in self.pairs:
                rows = -(-len(source) // (BLOCK * self.thread_pool.threads)) * BLOCK
                first = min(part * rows, len(source))
                stop = min(first + rows, len(source))
                transpose(source, target, first, stop)

        self.thread_pool.each(self.thread_pool.threads, work)
