"""Keys and values of past tokens: their memory, and the steps that append to them."""

import copy
import itertools
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.programs import Program
from nanoeuler.backend.records import Array, CacheSlots, DecodeStep, Norm
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.config import round_up

if TYPE_CHECKING:
    from nanoeuler.model.buffers import PassBuffers
    from nanoeuler.model.choosing import Choices, Choosing
    from nanoeuler.model.transformer import Transformer

CAPACITY_MULTIPLE = 128
"""A cache whose memory may pass to another is rounded up to a multiple of this many tokens, so
that more caches have the same shape."""

IDLE_TOKENS = 4096
"""The memory of caches that are gone is kept for this many tokens of all rows together, and the
newest in any case: a reply after the next one may have its shape."""

STEP_TOKENS = 2560
"""A cache keeps steps for this many tokens of all rows together, by default."""


class CacheMemory:
    """Slots for `rows` sequences of up to `capacity` tokens, and the steps made for them.

    Where an engine keeps it (`keeps_caches`), a cache that is gone leaves its memory to the next
    one of its shape, which then need not record its steps again.
    """

    def __init__(self, model: "Transformer", rows: int, capacity: int):
        ops = model.backend
        self.rows, self.capacity = rows, capacity
        shapes = [block.cache_shape for block in model.blocks]
        (shape,) = {shape for shape in shapes if shape is not None} or {(0, 0)}
        arrays = 2 * sum(shape is not None for shape in shapes)
        every = ops.zeros((arrays, rows, capacity, *shape), ops.activation)
        self.all_bits = every.view(f"u{every.itemsize}")
        """Keys and values of all blocks in one array, so that a row is copied at once. As whole
        numbers: not every library copies bfloat16."""
        pairs = itertools.starmap(CacheSlots, zip(every[::2], every[1::2], strict=True))
        self.slots = [None if shape is None else next(pairs) for shape in shapes]
        self.steps: dict[tuple[int, int, bool, Choices | None], CacheStep] = {}
        """By the number of rows and of tokens that there is room for, whether each token's output
        is needed, and who chooses behind the last ones."""
        self.choices: dict[tuple[int, int], Any] = {}
        """By the number of rows and of tokens: see `choosing.py`."""
        self.shapes: dict[tuple[int, int, bool], tuple[int, int]] = {}
        """What `shape_of` found."""
        self.step_tokens = STEP_TOKENS
        """Of the steps that `Cache.step` keeps."""

    def shape_of(
        self, model: "Transformer", rows: int, tokens: int, every: bool
    ) -> tuple[int, int]:
        """Tokens of each row that a pass takes for so many, and for which its step has room.

        An engine may take a few more at no cost, and one step serves prompts of all such lengths.
        """
        key, engine = (rows, tokens, every), model.backend
        if key not in self.shapes:
            self.shapes[key] = tokens, tokens
            if isinstance(engine, FusingBackend):
                multiple = engine.prompt_multiple
                longest = engine.longest_prompts(model.forms, model.config.dim, rows)
                room = min(round_up(self.capacity, multiple), longest // multiple * multiple)
                width = tokens if every else round_up(tokens, multiple)
                if tokens > 1 and engine.fused_tokens < width <= room and width % multiple == 0:
                    self.shapes[key] = width, room
        return self.shapes[key]

    def part(self, rows: slice) -> list[CacheSlots | None]:
        """The slots of some rows, by block."""
        if rows == slice(0, self.rows):
            return self.slots
        return [
            CacheSlots(slots.keys_BSGE[rows], slots.values_BSGE[rows]) if slots else None
            for slots in self.slots
        ]

    def trim(self, tokens: int) -> None:
        """Keep the steps used last, for `tokens` tokens of all rows together."""
        while sum(rows * length for rows, length, *_ in self.steps) > tokens:
            del self.steps[next(iter(self.steps))]


class Cache:
    """Keys and values of the tokens seen so far, for some sequences of up to `capacity` tokens.

    `lengths` (NumPy, one per row) may be set lower to forget tokens: see `truncate`.
    """

    def __init__(self, memory: CacheMemory, rows: int, capacity: int):
        self.memory, self.capacity = memory, capacity
        self.lengths = np.zeros(rows, np.int32)

    def append(
        self,
        model: "Transformer",
        tokens: np.ndarray,
        counts: np.ndarray | None,
        *,
        every: bool = False,
        choosing: "Choosing | None" = None,
    ) -> Norm:
        """See `Transformer.append`."""
        tokens = np.asarray(tokens, np.int32)
        B, n = tokens.shape
        new = [n] * B if counts is None else np.asarray(counts).tolist()
        if not len(self.lengths) == B == len(new) or not 1 <= min(new) <= max(new) <= n:
            raise ValueError(
                f"tokens of shape {tokens.shape} with counts {new} do not fit a cache "
                f"of {len(self.lengths)} rows"
            )
        held = self.lengths.tolist()
        if max(map(operator.add, held, new)) > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} tokens a row; it has {held} "
                f"and {new} more do not fit"
            )
        width, room = self.memory.shape_of(model, B, n, every)
        if width > n:
            tokens = np.pad(tokens, ((0, 0), (0, width - n)))
        step = self.step(model, room, every, choosing.choices if choosing else None)
        added = np.array(new, np.int32)
        norm = step.run(tokens, self.lengths, added, choosing.inputs if choosing else ())
        self.lengths += added
        return norm

    def step(
        self, model: "Transformer", room: int, every: bool, choices: "Choices | None"
    ) -> "CacheStep":
        """The step that appends up to `room` tokens to every row; the ones used last are kept."""
        key, steps = (len(self.lengths), room, every, choices), self.memory.steps
        if key == next(reversed(steps), None):  # the one used last
            return steps[key]
        steps[key] = steps.pop(key) if key in steps else CacheStep(model, self.memory, *key)
        if room > 1:
            self.memory.trim(max(self.memory.step_tokens, key[0] * room))
        return steps[key]

    def truncate(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of `row`."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(
                f"row {row} holds {self.lengths[row]} tokens; it cannot be cut to {length}"
            )
        self.lengths[row] = length

    def row(self, row: int) -> "Cache":
        """One row as a cache of its own, in the same memory, with steps of its own."""
        one = copy.copy(self)
        one.memory = copy.copy(self.memory)
        one.memory.slots, one.memory.rows = self.memory.part(slice(row, row + 1)), 1
        one.memory.steps, one.memory.choices = {}, {}
        one.lengths = self.lengths[row : row + 1]
        return one

    def join(self, other: "Cache", new: int = 0) -> None:
        """Add a row behind the others: a copy of row `new` of `other`.

        The memory must have a row to spare: start with `lengths[:0]` of a cache of all rows.
        """
        row, length = len(self.lengths), int(other.lengths[new])
        target, source = self.memory.all_bits, other.memory.all_bits
        target[:, row, :length] = source[:, new, :length]
        self.lengths = np.append(self.lengths, other.lengths[new])

    def remove(self, row: int) -> None:
        """Give up `row`; the last row takes its slots, and nothing else is copied."""
        last = len(self.lengths) - 1
        length = self.lengths[last]
        if row != last:
            every = self.memory.all_bits
            every[:, row, :length] = every[:, last, :length]
        self.lengths[row] = length
        self.lengths = self.lengths[:last]


class CacheStep:
    """Appends up to `room` new tokens to every row of a cache, always on the same arrays: an engine
    may record it, for each number of tokens. Without `every` it ends with the last one of each row,
    behind which `choices` may choose."""

    def __init__(
        self,
        model: "Transformer",
        memory: CacheMemory,
        rows: int,
        room: int,
        every: bool,
        choices: "Choices | None",
    ):
        model.need_positions(memory.capacity + room)
        self.fused, backend = is_fused(model, rows, room), model.backend
        # the model may hold this step, by way of the memory of a cache that is gone
        self.model, self.choices, self.rows = weakref.proxy(model), choices, rows
        self.reads_positions = not self.fused or model.weights.positions is not None
        """A fused op counts them from the lengths."""
        self.arange = np.arange(room, dtype=np.int32)
        shapes = rows, rows, *([(rows, room)] if self.reads_positions else [])
        fed = [np.zeros(shape, np.int32) for shape in shapes]
        inputs = choices.no_inputs if choices else ()
        self.feed = backend.feed([*fed, *inputs, np.zeros(rows * room, np.int32)])
        self.starts = backend.zeros((rows * room,), np.int32)
        self.slots, self.table = memory.part(slice(0, rows)), model.rope_table
        self.decode = decode_step(model, self.slots) if self.fused else None
        self.last_BD: Array = None
        """The residual stream at each row's last token, if that is all that is needed."""
        self.begins: np.ndarray | None = None
        """Each row's first token among those of all rows, if its last one is taken from there."""
        if room > 1 and not every:
            self.last_BD = backend.empty((rows, model.config.dim), backend.residual)
            if self.decode and isinstance(backend, FusingBackend) and room > backend.fused_tokens:
                self.decode.last_BD = self.last_BD
            else:
                self.begins = np.arange(0, rows * room, room, dtype=np.int32)
        self.passes: dict[int, tuple[Program, Norm]] = {}
        """By the number of tokens: what appends them, and the norm behind them."""

    def run(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        counts: np.ndarray,
        inputs: Sequence[np.ndarray],
    ) -> Norm:
        """Append tokens (rows, n), of which counts (rows,) are meant, behind `lengths` tokens of
        each row. `inputs` are those of the choice. Returns the norm to be taken behind them."""
        n = tokens.shape[1]
        if n not in self.passes:
            self.passes[n] = self.new_pass(n)
        program, norm = self.passes[n]
        positions = [lengths[:, None] + self.arange] if self.reads_positions else []
        ends = (lengths if self.begins is None else self.begins) + counts - 1
        self.feed.load(lengths, ends, *positions, *inputs, tokens.reshape(-1))
        program.run()
        return norm

    def new_pass(self, tokens: int) -> tuple[Program, Norm]:
        # by names of its own: what names the step itself would keep its memory until a collection
        model, feed, choices, decode = self.model, self.feed, self.choices, self.decode
        N, slots, table = self.rows * tokens, self.slots, self.table
        reads_positions, gathers = self.reads_positions, self.begins is not None
        buffers = model.buffers(self.rows, tokens, stream_only=self.fused)
        starts, final = self.starts[:N].reshape(self.rows, tokens), buffers.norms[-1]
        norm = final if self.last_BD is None else norm_of(final, self.last_BD)

        def work() -> None:
            offset, ends, *rest, ids = feed.arrays
            positions_N = rest.pop(0).reshape(-1) if reads_positions else None
            if decode:
                decode.ends_B = ends
            model.embed(ids[:N], positions_N, buffers)
            run_cached(model, Rows(positions_N, starts, offset, table), buffers, slots, decode)
            if gathers:
                model.backend.gather(final.x_ND, ends, norm.x_ND)
            if choices:
                choices.choose_behind(norm, *rest)

        return model.backend.program(work), norm


def norm_of(norm: Norm, x_BD: Array) -> Norm:
    """The same norm of B rows elsewhere, with what it writes where that of its first rows goes."""
    B = len(x_BD)
    return norm._replace(x_ND=x_BD, out_ND=norm.out_ND[:B], inverse_rms_N=norm.inverse_rms_N[:B])


def decode_step(model: "Transformer", slots: list[CacheSlots | None]) -> DecodeStep:
    """New tokens as the engine's fused op takes them."""
    return DecodeStep(model.rope_table, model.forms, model.weights.blocks, slots)


def is_fused(model: "Transformer", rows: int, tokens: int) -> bool:
    """Does the engine have a fused op for so many new tokens of each row?"""
    engine, forms, dim = model.backend, model.forms, model.config.dim
    return isinstance(engine, FusingBackend) and (
        engine.fuses(forms, rows, tokens)
        or engine.fused_tokens < tokens <= engine.longest_prompts(forms, dim, rows)
    )


def run_cached(
    model: "Transformer",
    rows: Rows,
    buffers: "PassBuffers",
    slots: list[CacheSlots | None],
    decode: DecodeStep | None,
) -> None:
    """From new tokens' embeddings to the stream behind the last block.

    By the engine's fused op where there is one, else block by block.
    """
    engine = model.backend
    if decode is not None and isinstance(engine, FusingBackend):
        decode.x_ND = buffers.norms[0].x_ND
        decode.lengths_B, decode.starts_BT = rows.offset_B, rows.starts_BT
        engine.decode_fused(decode)
    else:
        model.run_blocks(rows, buffers, model.weights, slots)


def new_cache(
    model: "Transformer", idle: dict[tuple[int, int], CacheMemory], rows: int, capacity: int
) -> Cache:
    """An empty cache, in the memory of one that is gone where `idle` has it.

    A cache that is gone leaves its memory in `idle`, where the engine keeps some.
    """
    keeps = model.backend.keeps_caches
    slots = round_up(capacity, CAPACITY_MULTIPLE) if keeps else capacity
    memory = idle.pop((rows, slots), None)
    if memory is None:
        trim_idle(idle, IDLE_TOKENS - rows * slots)  # before the new one takes memory
        memory = CacheMemory(model, rows, slots)
    cache = Cache(memory, rows, capacity)
    if keeps:
        gone = weakref.finalize(cache, give_back, idle, (rows, slots), memory)
        gone.atexit = False
    return cache


def give_back(
    idle: dict[tuple[int, int], CacheMemory], shape: tuple[int, int], memory: CacheMemory
) -> None:
    """Keep the memory of a cache that is gone, and of those before it the newest."""
    memory.trim(STEP_TOKENS)
    idle.pop(shape, None)
    rows, slots = shape
    trim_idle(idle, IDLE_TOKENS - rows * slots)
    idle[shape] = memory


def trim_idle(idle: dict[tuple[int, int], CacheMemory], tokens: int) -> None:
    """Give up the oldest until the others are for no more than `tokens` together."""
    while idle and sum(rows * slots for rows, slots in idle) > tokens:
        del idle[next(iter(idle))]
