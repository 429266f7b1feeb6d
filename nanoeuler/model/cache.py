"""Keys and values of the tokens seen so far, their memory, and what a device has recorded for it.

`model` stands for the `Transformer` whose cache it is.
"""

import copy
from typing import Any

import numpy as np

from nanoeuler.backend.flat_places import places
from nanoeuler.model.spec import ModelConfig

Array = Any

CACHE_PLACES = 128
"""The room of a cache that may be left to another is rounded up to a multiple of this many tokens, so that more are of one shape."""

STEP_TOKENS = 2048
"""A cache keeps buffers, and recorded work, for so many tokens of all rows together: a token each, and prompts of some lengths."""


class CacheMemory:
    """Room for keys and values of `rows` sequences of up to `capacity` tokens, and what was recorded for it.

    Where a backend keeps some (`idle_caches`), a cache that is gone leaves its memory to the next one of its shape, which need not record again.
    """

    def __init__(self, config: ModelConfig, backend: Any, rows: int, capacity: int):
        shape = (rows, capacity, config.kv_heads, config.head_size)
        self.keys = [backend.zeros(shape, backend.activation) for _ in range(config.layers)]
        self.values = [backend.zeros(shape, backend.activation) for _ in range(config.layers)]
        self.capacity = capacity
        self.steps: dict[tuple[int, int], CacheStep] = {}
        self.choices: dict[int, Any] = {}
        """By the number of rows: see `choosing.py`."""

    def trim(self, tokens: int) -> None:
        """Keep the steps used last, for `tokens` tokens of all rows together."""
        while sum(rows * length for rows, length in self.steps) > tokens:
            del self.steps[next(iter(self.steps))]


class Cache:
    """Keys and values of the tokens seen so far, for some sequences of up to `capacity` tokens.

    `lengths` (NumPy, one per row) may be set lower to forget tokens: see `truncate`.
    """

    def __init__(self, memory: CacheMemory, rows: int, capacity: int):
        self.memory, self.capacity = memory, capacity
        self.keys, self.values = list(memory.keys), list(memory.values)
        self.lengths = np.zeros(rows, np.int32)

    def step(self, model: Any, tokens: int) -> "CacheStep":
        """What appending `tokens` to every row needs; of those made, the ones used last are kept."""
        key, steps = (len(self.lengths), tokens), self.memory.steps
        steps[key] = steps.pop(key, None) or CacheStep(model, *key, self.memory.capacity)
        self.memory.trim(max(STEP_TOKENS, key[0] * tokens))
        return steps[key]

    def truncate(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of `row`."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(
                f"row {row} holds {self.lengths[row]} tokens; it cannot be cut to {length}"
            )
        self.lengths[row] = length

    def row(self, row: int) -> "Cache":
        """One row as a cache of its own, in the same memory; what was recorded for the whole cache is not for it."""
        one = copy.copy(self)
        one.memory = copy.copy(self.memory)
        one.memory.steps, one.memory.choices = {}, {}
        one.keys, one.values = (
            [slots[row : row + 1] for slots in layers] for layers in (self.keys, self.values)
        )
        one.lengths = self.lengths[row : row + 1]
        return one

    def remove(self, row: int) -> None:
        """Give up `row`; the last row takes its place, and nothing else is copied."""
        last = len(self.lengths) - 1
        for layers in (self.keys, self.values):
            for index, slots in enumerate(layers):
                slots[row] = slots[last]
                layers[index] = slots[:last]
        self.lengths[row] = self.lengths[last]
        self.lengths = self.lengths[:last]


class CacheStep:
    """New tokens of every row of a cache, on the backend, and the buffers that they are computed in: always the same, so that a device can record it."""

    def __init__(self, model: Any, batch: int, tokens: int, capacity: int):
        model.need_positions(capacity + tokens)
        self.buffers, self.rope_table = model.plan(batch, tokens, training=False), model.rope_table
        shape = batch, tokens
        arrays = [np.zeros(shape, np.int32) for _ in range(3)] + [np.zeros(batch, np.int32)]
        parts = places(arrays)
        self.flat = model.backend.zeros((parts[-1].stop,), np.uint8)
        views = [
            self.flat[part].view(np.int32).reshape(array.shape)
            for part, array in zip(parts, arrays, strict=True)
        ]
        self.tokens, self.positions, self.starts, self.offset = views
        self.recorded: Any = None


def give_back(
    idle: dict[tuple[int, int], CacheMemory], shape: tuple[int, int], memory: CacheMemory, most: int
) -> None:
    """Keep the memory of a cache that is gone, and of those before it the newest, `most` in all."""
    memory.trim(STEP_TOKENS)
    idle.pop(shape, None)
    idle[shape] = memory
    while len(idle) > most:
        del idle[next(iter(idle))]
