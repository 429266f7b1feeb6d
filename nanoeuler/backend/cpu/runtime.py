"""How the CPU engine shares a training step: its threads, replicas and transposed weights.

Compiled kernels and BLAS release Python's lock, so plain threads run them at the same time. Part i
always covers the same rows, so results do not depend on which thread is faster.
"""

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from nanoeuler.backend.cpu import training
from nanoeuler.backend.cpu.blas import Blas
from nanoeuler.backend.cpu.ordered import OrderedProducts
from nanoeuler.backend.records import ModelWeights
from nanoeuler.backend.runtime import Runtime
from nanoeuler.system.compiling import compiled
from nanoeuler.system.interrupts import put_off

Array = np.ndarray

CACHE_LINE = 64  # bytes
TILE = 16
"""Rows and columns transposed at a time: the 2 · 16 cache lines stay in the first-level cache."""

SLICE_TOKENS = 512
"""Tokens that a replica computes at once: their activations mostly stay in the last-level cache."""
SHORT_SLICE_TOKENS = 256
SHORT_SLICE_BYTES = 8 * 2**20
"""Tokens of a slice for a model of at most SHORT_SLICE_BYTES. Half the activations cost no speed
there: gradients, which every slice reads and writes, also stay in the last-level cache."""
SHORT_SLICE_LOGITS = 1 << 18
"""Logits that such a model makes at once: they stay in the second-level cache until their gradient
has been used."""
COPIES_BYTES = 512 * 2**20
"""Most memory for the gradients of all replicas; above it, threads share the work of every op."""


class ThreadPool:
    """`threads` threads, the caller's included."""

    def __init__(self, threads: int):
        self.threads = threads
        self.pool = (
            ThreadPoolExecutor(threads - 1, thread_name_prefix="nanoeuler") if threads > 1 else None
        )

    def each(self, parts: int, work: Callable[[int], None]) -> None:
        """Run work(0) … work(parts − 1) together, the first in the caller's thread.

        `parts` may exceed the number of threads. Returns when all are done, and Ctrl-C waits for
        that, too.
        """
        if self.pool is None or parts == 1:
            for part in range(parts):
                work(part)
            return
        with put_off():
            waiting = [self.pool.submit(work, part) for part in range(1, parts)]
            try:
                work(0)
            finally:
                wait(waiting)
        for future in waiting:
            future.result()

    def share(self, count: int, most: int, work: Callable[..., None], *arguments: Any) -> None:
        """work(*arguments, first, stop) on contiguous parts of range(count), at most `most`."""
        parts = 1 if self.threads == 1 else max(1, min(self.threads, most, count))
        if parts == 1:
            work(*arguments, 0, count)
            return

        def work_on(part: int) -> None:
            work(*arguments, part * count // parts, (part + 1) * count // parts)

        self.each(parts, work_on)


class CpuRuntime(Runtime):
    """For a large model there is one replica, and the threads share the rows of each op."""

    def __init__(self, thread_pool: ThreadPool, blas: Blas | OrderedProducts):
        self.thread_pool, self.blas = thread_pool, blas
        self.sized_for: int | None = None
        """Parameters of the model in whose way any model is computed, if that is given."""
        self.is_short = False
        """Whether slices of the model in training are short; with lanes its size alone decides."""
        self.transposes: Transposes | None = None

    def slices(self, elements: int) -> tuple[int, int]:
        elements, threads = self.sized_for or elements, self.thread_pool.threads
        if 4 * elements * threads > COPIES_BYTES:
            return 8192, 1
        tokens = SHORT_SLICE_TOKENS if 4 * elements <= SHORT_SLICE_BYTES else SLICE_TOKENS
        return tokens, threads

    lane_tokens = SLICE_TOKENS

    def replicas(self, engine: Any, elements: int, lanes: int = 0) -> list[Any]:
        tokens, shares = self.slices(elements)
        self.is_short = tokens == SHORT_SLICE_TOKENS
        if lanes:  # an op of several threads may have other bits
            shares = min(lanes, self.thread_pool.threads)
            self.is_short = 4 * (self.sized_for or elements) <= SHORT_SLICE_BYTES
        alone = shares == 1 and not lanes
        engines = [engine] if alone else [engine.with_threads(1) for _ in range(shares)]
        if self.is_short:
            for each in engines:
                each.logits_at_once = SHORT_SLICE_LOGITS
        return engines

    def side_by_side(self, count: int, work: Callable[[int], None]) -> None:
        self.thread_pool.each(count, work)

    def sum_into(self, target: Array, others: Sequence[Array]) -> None:
        if not others or target.dtype != np.float32:
            super().sum_into(target, others)
            return

        def work(first: int, stop: int) -> None:
            for other in others:
                training.add(target[first:stop], other[first:stop])

        self.thread_pool.share(len(target), len(target) // training.BLOCK, work)

    def training_weights(self, weights: ModelWeights) -> ModelWeights:
        """Transposed copies, for a model whose slices are short.

        For longer slices and larger weights they would cost more than they save, and MKL reads
        weights as fast as transposes. Weights beneath adapters may have no floats.
        """
        if weights.flat is None or not self.blas.wants_transposes:
            return weights
        if not self.is_short:
            return weights
        if self.transposes is None or self.transposes.source is not weights:
            self.transposes = Transposes(weights, self.thread_pool)
        self.transposes.refresh()
        return self.transposes.weights


@compiled()
def transpose(source_OI, target_IO, first, stop):
    """target[:, first:stop] = source[first:stop]ᵀ"""
    inputs = source_OI.shape[1]
    for o in range(first, stop, TILE):
        for i in range(0, inputs, TILE):
            for column in range(i, min(i + TILE, inputs)):
                for row in range(o, min(o + TILE, stop)):
                    target_IO[column, row] = source_OI[row, column]


class Transposes:
    """Weights of a model whose matrices are views (out, in) of memory that holds (in, out).

    For x Wᵀ, BLAS first copies W into an order of its own. OpenBLAS copies one number at a time
    from a W that is stored by rows, and whole vectors from one that is stored by columns, which
    makes the product a tenth faster. A training step makes the transposes once and uses them for
    all its slices.
    """

    def __init__(self, source: ModelWeights, threads: ThreadPool):
        """Updates change `source`; `refresh` brings the transposes up to date."""
        self.source, self.thread_pool = source, threads
        self.pairs: list[tuple[Array, Array]] = []

        def transposed(weight_OI: Array) -> Array:
            self.pairs.append(
                (weight_OI, aligned(np.empty, weight_OI.shape[::-1], weight_OI.dtype))
            )
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
                rows = -(-len(source) // (TILE * self.thread_pool.threads)) * TILE
                first = min(part * rows, len(source))
                stop = min(first + rows, len(source))
                transpose(source, target, first, stop)

        self.thread_pool.each(self.thread_pool.threads, work)


def aligned(make: Callable[..., Array], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array that starts at a cache line, so that loading a vector register touches one line.

    `make` (`np.empty` or `np.zeros`) takes its memory. NumPy asks Linux for pages of 2 MiB behind
    arrays of 4 MiB and more. That is why a pass takes one block of memory for all its arrays: on
    pages of 4 kB it would wait for the processor's page tables.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
