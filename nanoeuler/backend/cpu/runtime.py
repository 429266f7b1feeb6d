"""How the CPU engine shares a training step: replicas of one thread each, for a small model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nanoeuler.backend.cpu import optimizer
from nanoeuler.backend.cpu.blas import Blas
from nanoeuler.backend.cpu.thread_pool import ThreadPool
from nanoeuler.backend.cpu.transposes import Transposes
from nanoeuler.backend.records import ModelWeights
from nanoeuler.backend.runtime import Runtime

Array = np.ndarray

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


class CpuRuntime(Runtime):
    """For a large model there is one replica, and the threads share the rows of each op."""

    def __init__(self, thread_pool: ThreadPool, blas: Blas):
        self.thread_pool, self.blas = thread_pool, blas
        self.sized_for: int | None = None
        """Parameters of the model in whose way any model is computed, if that is given."""
        self.transposes: Transposes | None = None

    def slices(self, elements: int) -> tuple[int, int]:
        elements, threads = self.sized_for or elements, self.thread_pool.threads
        if 4 * elements * threads > COPIES_BYTES:
            return 8192, 1
        tokens = SHORT_SLICE_TOKENS if 4 * elements <= SHORT_SLICE_BYTES else SLICE_TOKENS
        return tokens, threads

    def replicas(self, engine: Any, elements: int) -> list[Any]:
        tokens, shares = self.slices(elements)
        engines = [engine] if shares == 1 else [type(engine)(1) for _ in range(shares)]
        if tokens == SHORT_SLICE_TOKENS:
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
                optimizer.add(target[first:stop], other[first:stop])

        self.thread_pool.share(len(target), len(target) // optimizer.BLOCK, work)

    def training_weights(self, weights: ModelWeights) -> ModelWeights:
        """Transposed copies, for a model whose slices are short.

        For longer slices and larger weights they would cost more than they save, and MKL reads
        weights as fast as transposes.
        """
        short = self.slices(weights.flat.size)[0] == SHORT_SLICE_TOKENS
        if not short or self.blas.label.startswith("mkl"):
            return weights
        if self.transposes is None or self.transposes.source is not weights:
            self.transposes = Transposes(weights, self.thread_pool)
        self.transposes.refresh()
        return self.transposes.weights
