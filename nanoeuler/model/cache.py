"""The cache: keys and values of past tokens. It is data, which passes (`appending.py`) write."""

import copy
import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoeuler.backend.cached import row_bytes
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import CacheSlots
from nanoeuler.model.blocks.block import Block
from nanoeuler.model.config import round_up

CAPACITY_MULTIPLE = 128
"""A cache whose memory may pass to another is rounded up to a multiple of this many tokens, so
that more caches have the same shape."""

IDLE_TOKENS = 4096
"""The memory of caches that are gone is kept for this many tokens of all rows together, and the
newest in any case: a reply after the next one may have its shape."""

PASS_TOKENS = 2560
"""Passes are kept for this many tokens of all rows together, by default."""


class CacheMemory:
    """Slots for `rows` sequences of up to `capacity` tokens, and what was recorded for them."""

    def __init__(
        self,
        backend: Backend,
        shapes: Sequence[tuple[int, int] | None],
        rows: int,
        capacity: int,
        dtype: np.dtype,
    ):
        """`shapes`: that of a slot in each block. `dtype`: the engine's, or bytes."""
        self.rows, self.capacity = rows, capacity
        (shape,) = {shape for shape in shapes if shape is not None} or {(0, 0)}
        arrays = 2 * sum(shape is not None for shape in shapes)
        every = backend.zeros((arrays, rows, capacity, *shape), dtype)
        self.all_bits = every.view(f"u{every.itemsize}")
        """Keys and values of all blocks in one array, so that a row is copied at once. As whole
        numbers: not every library copies bfloat16."""
        pairs = itertools.starmap(CacheSlots, zip(every[::2], every[1::2], strict=True))
        self.slots = [None if shape is None else next(pairs) for shape in shapes]
        self.passes: dict[tuple[int, int, bool, Any], Any] = {}
        """`AppendingPass` by rows, room for tokens of each, whether all of their outputs are
        needed, and what goes on behind the last ones."""
        self.samplers: dict[tuple[Any, ...], Any] = {}
        """`DeviceLoop` by rows and tokens of a step."""
        self.widths: dict[tuple[int, int, bool], tuple[int, int]] = {}
        """What `appending.width_and_room` found."""
        self.pass_tokens = PASS_TOKENS

    def part(self, rows: slice) -> list[CacheSlots | None]:
        """The slots of some rows, by block."""
        if rows == slice(0, self.rows):
            return self.slots
        return [
            CacheSlots(slots.keys_BSGE[rows], slots.values_BSGE[rows]) if slots else None
            for slots in self.slots
        ]

    def trim(self, tokens: int) -> None:
        """Keep the passes used last, for `tokens` tokens of all rows together."""
        while sum(rows * room for rows, room, *_ in self.passes) > tokens:
            del self.passes[next(iter(self.passes))]


class Cache:
    """Keys and values of the tokens seen so far, for some sequences of up to `capacity` tokens.

    `lengths` (NumPy, one per row) may be set lower to forget tokens: see `truncate`.
    """

    def __init__(self, memory: CacheMemory, rows: int, capacity: int):
        self.memory, self.capacity = memory, capacity
        self.lengths = np.zeros(rows, np.int32)

    def truncate(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of `row`."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(
                f"row {row} holds {self.lengths[row]} tokens; it cannot be cut to {length}"
            )
        self.lengths[row] = length

    def row(self, row: int) -> "Cache":
        """One row as a cache of its own, in the same memory, with passes of its own."""
        one = copy.copy(self)
        one.memory = copy.copy(self.memory)
        one.memory.slots, one.memory.rows = self.memory.part(slice(row, row + 1)), 1
        one.memory.passes, one.memory.samplers = {}, {}
        one.lengths = self.lengths[row : row + 1]
        return one

    def join(self, other: "Cache", new: int = 0) -> None:
        """Add a row behind the others: a copy of row `new` of `other`.

        The memory must have a row to spare: start with `lengths[:0]` of a cache of all rows.
        """
        row, length = len(self.lengths), int(other.lengths[new])
        target, source = self.memory.all_bits, other.memory.all_bits
        target[:, row, :length] = source[:, new, :length]
        self.lengths = np.concatenate([self.lengths, other.lengths[new : new + 1]])

    def remove(self, row: int) -> None:
        """Give up `row`; the last row takes its slots, and nothing else is copied."""
        last = len(self.lengths) - 1
        length = self.lengths[last]
        if row != last:
            every = self.memory.all_bits
            every[:, row, :length] = every[:, last, :length]
        self.lengths[row] = length
        self.lengths = self.lengths[:last]


class CachePool:
    """Makes a model's caches, in the memory of those that are gone where the engine keeps it.

    So the passes recorded for it are not recorded again.
    """

    def __init__(
        self, backend: Backend, blocks: Sequence[Block[Any, Any]], *, in_bytes: bool = False
    ):
        """`in_bytes`: keys and values are rounded, for an engine that `reads_codes`."""
        self.backend, self.dtype = backend, np.dtype(np.int8 if in_bytes else backend.activation)
        self.shapes = [
            (shape[0], row_bytes(shape[1])) if shape and in_bytes else shape
            for shape in (block.cache_shape for block in blocks)
        ]
        self.idle: dict[tuple[int, int], CacheMemory] = {}
        """By rows and capacity, the newest last."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token: its keys and values in all blocks."""
        shapes = [shape for shape in self.shapes if shape is not None]
        return 2 * self.dtype.itemsize * sum(map(math.prod, shapes))

    def new(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        keeps = self.backend.keeps_caches
        slots = round_up(capacity, CAPACITY_MULTIPLE) if keeps else capacity
        memory = self.idle.pop((rows, slots), None)
        if memory is None:
            self.trim(IDLE_TOKENS - rows * slots)  # before the new one takes memory
            memory = CacheMemory(self.backend, self.shapes, rows, slots, self.dtype)
        cache = Cache(memory, rows, capacity)
        if keeps:
            weakref.finalize(cache, self.give_back, memory).atexit = False
        return cache

    def give_back(self, memory: CacheMemory) -> None:
        """Keep the memory of a cache that is gone, and of those before it the newest."""
        memory.trim(PASS_TOKENS)
        shape = memory.rows, memory.capacity
        self.idle.pop(shape, None)
        self.trim(IDLE_TOKENS - memory.rows * memory.capacity)
        self.idle[shape] = memory

    def trim(self, tokens: int) -> None:
        """Drop the oldest until the others have no more than `tokens` slots together."""
        while self.idle and sum(rows * slots for rows, slots in self.idle) > tokens:
            del self.idle[next(iter(self.idle))]
