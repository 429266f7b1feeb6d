"""Transposes of the weights, for the forward pass of training.

Of x Wᵀ, BLAS lays W out anew for every product. OpenBLAS reads one stored by rows a number at a time there, and one stored by columns whole
vectors at a time, which makes the product a tenth faster. A step of training makes the transposes once and uses them for all of its slices.
"""

import copy
from typing import Any

import numpy as np

from nanoeuler.compiling import compiled

Array = np.ndarray
BLOCK = 16
"""Rows and columns that are turned at a time: each touches as many cache lines, which all stay in the first-level cache."""
MATRICES = ("query_key_value", "attention_output", "gate_up", "down")


@compiled()
def transpose(source_OI, target_IO, first, stop):
    """The columns `first` … `stop` of `target` from as many rows of `source`."""
    inputs = source_OI.shape[1]
    for o in range(first, stop, BLOCK):
        for i in range(0, inputs, BLOCK):
            for column in range(i, min(i + BLOCK, inputs)):
                for row in range(o, min(o + BLOCK, stop)):
                    target_IO[column, row] = source_OI[row, column]


class Transposes:
    """`weights` as those of a model, whose matrices are views (out, in) of memory that holds them as (in, out)."""

    def __init__(self, weights: Any, backend: Any):
        """`weights` are `ModelViews`, which stay the place where they are changed."""
        self.team = backend.team
        self.pairs: list[tuple[Array, Array]] = []

        def turned(weight_OI: Array) -> Array:
            self.pairs.append((weight_OI, backend.empty(weight_OI.shape[::-1])))
            return self.pairs[-1][1].T

        self.weights = copy.copy(weights)
        self.weights.layers = [copy.copy(layer) for layer in weights.layers]
        for layer in self.weights.layers:
            for name in MATRICES:
                setattr(layer, name, turned(getattr(layer, name)))
        self.weights.heads = turned(weights.heads)

    def refresh(self) -> None:
        """Bring them up to date with the weights, every thread a share of each matrix."""

        def work(part: int) -> None:
            for source, target in self.pairs:
                rows = -(-len(source) // (BLOCK * self.team.threads)) * BLOCK
                transpose(
                    source,
                    target,
                    min(part * rows, len(source)),
                    min((part + 1) * rows, len(source)),
                )

        self.team.each(self.team.threads, work)
