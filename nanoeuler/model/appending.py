"""Append tokens to a cache: prompts, decoded tokens and drafts take the same pass."""

import operator
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.records import Array, CacheSlots, DecodeStep, Norm
from nanoeuler.backend.runtime import Program
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.buffers import PassBuffers
from nanoeuler.model.cache import Cache, CacheMemory
from nanoeuler.model.config import round_up
from nanoeuler.model.transformer import Transformer

Behind = Callable[..., None]
"""Called with the norm behind each row's last token, and small inputs of its own."""


def extend(
    model: Transformer,
    cache: Cache,
    tokens: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    every: bool = False,
) -> Array:
    """Append tokens to every row of `cache` and return head 0's logits.

    `tokens` is (rows, n) with n ≥ 1; row b appends its first counts[b] ≥ 1 (default: all n).
    Returns the logits behind each row's last token, (rows, V), or with `every` behind every token,
    (rows, n, V); those past counts[b] mean nothing. A device overwrites them at the next call.
    Raises ValueError when a row would outgrow the cache.
    """
    norm, logits = append(model, cache, tokens, counts, every=every)
    if every:
        logits = every_logits(model, norm)
        return logits.reshape(*np.shape(tokens), model.config.vocab_size)
    return logits


def every_logits(model: Transformer, norm: Norm) -> Array:
    """Logits behind every token that was appended."""
    model.backend.norm(norm)
    return model.first_logits(norm.out_ND)


def append(
    model: Transformer,
    cache: Cache,
    tokens: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    every: bool = False,
    behind: Behind | None = None,
    inputs: Sequence[np.ndarray] = (),
) -> tuple[Norm, Array]:
    """Append tokens as `extend` does. Returns the norm behind them, of (rows, D), and logits.

    With `every` the norm is of (rows · n, D), and is still to be taken: there are no logits. Nor
    are there with `behind`, which goes on from the norm within the same pass, with `inputs` on the
    device.
    """
    tokens, memory = np.asarray(tokens, np.int32), cache.memory
    B, n = tokens.shape
    new = [n] * B if counts is None else np.asarray(counts).tolist()
    if not len(cache.lengths) == B == len(new) or not 1 <= min(new) <= max(new) <= n:
        raise ValueError(
            f"tokens of shape {tokens.shape} with counts {new} do not fit a cache "
            f"of {len(cache.lengths)} rows"
        )
    held = cache.lengths.tolist()
    if max(map(operator.add, held, new)) > cache.capacity:
        raise ValueError(
            f"the cache holds {cache.capacity} tokens a row; it has {held} "
            f"and {new} more do not fit"
        )
    width, room = width_and_room(model, memory, B, n, every)
    if width > n:
        tokens = np.pad(tokens, ((0, 0), (0, width - n)))
    key, passes = (B, room, every, behind), memory.passes
    if key != next(reversed(passes), None):  # the last one is the one used last
        known = passes.pop(key, None)
        passes[key] = known or AppendingPass(model, memory, *key, inputs)
        if room > 1:
            memory.trim(max(memory.pass_tokens, B * room))
    added = np.array(new, np.int32)
    found = passes[key].run(tokens, cache.lengths, added, inputs)
    cache.lengths += added
    return found


def width_and_room(
    model: Transformer, memory: CacheMemory, rows: int, tokens: int, every: bool
) -> tuple[int, int]:
    """Tokens of each row that a pass over so many takes, and for which its arrays have room.

    An engine may take a few more at no cost, and one pass serves prompts of all such lengths.
    """
    key, engine = (rows, tokens, every), model.backend
    if key not in memory.widths:
        memory.widths[key] = tokens, tokens
        if isinstance(engine, FusingBackend):
            multiple = engine.prompt_multiple
            longest = engine.longest_prompts(model.forms, model.config.dim, rows)
            room = min(round_up(memory.capacity, multiple), longest // multiple * multiple)
            width = tokens if every else round_up(tokens, multiple)
            if tokens > 1 and engine.fused_tokens < width <= room and width % multiple == 0:
                memory.widths[key] = width, room
    return memory.widths[key]


class CachedPass:
    """Takes new tokens of the first `rows` rows of a cache through all blocks.

    It always works on the same arrays, so an engine may record it.
    """

    def __init__(self, model: Transformer, memory: CacheMemory, rows: int, tokens: int):
        """`tokens`: new ones of each row, at most."""
        model.rotary.need(memory.capacity + tokens)
        # the model may hold this pass, by way of the memory of a cache that is gone
        is_weak = isinstance(model, weakref.ProxyTypes)
        self.model: Transformer = model if is_weak else weakref.proxy(model)
        self.rows, self.rope_table = rows, model.rotary.whole
        self.slots = memory.part(slice(0, rows))
        self.fused = is_fused(model, rows, tokens)
        self.decode = decode_step(model, self.slots) if self.fused else None


class AppendingPass(CachedPass):
    """Appends up to `room` new tokens of each row, which come from the host.

    With `every` it ends with the residual stream, else with the logits behind the last one of each
    row, or with `behind`.
    """

    def __init__(
        self,
        model: Transformer,
        memory: CacheMemory,
        rows: int,
        room: int,
        every: bool,
        behind: Behind | None,
        inputs: Sequence[np.ndarray],
    ):
        super().__init__(model, memory, rows, room)
        backend, self.behind = model.backend, behind
        self.reads_positions = not self.fused or model.weights.positions is not None
        """A fused op counts them from the lengths."""
        self.arange = np.arange(room, dtype=np.int32)
        shapes = rows, rows, *([(rows, room)] if self.reads_positions else [])
        fed = [np.zeros(shape, np.int32) for shape in shapes]
        self.feed = backend.runtime.feed([*fed, *inputs, np.zeros(rows * room, np.int32)])
        self.starts = backend.zeros((rows * room,), np.int32)
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
        self.ends_with_logits = not (every or behind)
        self.logits_BV: Array = None
        """Where a device always leaves them."""
        if self.ends_with_logits and backend.device:
            self.logits_BV = backend.empty((rows, model.heads.rows), backend.activation)
        self.programs: dict[int, tuple[Program, Norm, list[Array]]] = {}
        """By the number of tokens: what appends them, the norm behind them, and the logits."""

    def run(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        counts: np.ndarray,
        inputs: Sequence[np.ndarray],
    ) -> tuple[Norm, Array]:
        """Append tokens (rows, n), of which counts (rows,) are meant, behind `lengths` tokens of
        each row. `inputs`, and what is returned: see `append`."""
        n = tokens.shape[1]
        if n not in self.programs:
            self.programs[n] = self.new_program(n)
        program, norm, logits = self.programs[n]
        positions = [lengths[:, None] + self.arange] if self.reads_positions else []
        ends = (lengths if self.begins is None else self.begins) + counts - 1
        self.feed.load(lengths, ends, *positions, *inputs, tokens.reshape(-1))
        program.run()
        return norm, logits[0] if logits else None

    def new_program(self, tokens: int) -> tuple[Program, Norm, list[Array]]:
        # by names of its own: one that names the pass would keep its memory until a collection
        model, feed, behind, decode = self.model, self.feed, self.behind, self.decode
        N, slots, table = self.rows * tokens, self.slots, self.rope_table
        reads_positions, gathers = self.reads_positions, self.begins is not None
        ends_with_logits, logits_BV, found = self.ends_with_logits, self.logits_BV, list[Array]()
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
            if behind:
                behind(norm, *rest)
            if ends_with_logits:
                model.backend.norm(norm)
                found[:] = [model.first_logits(norm.out_ND, logits_BV)]

        return model.backend.runtime.program(work), norm, found


def norm_of(norm: Norm, x_BD: Array) -> Norm:
    """`norm` applied to `x_BD`; its outputs go to the first B rows of its arrays."""
    B = len(x_BD)
    return norm._replace(x_ND=x_BD, out_ND=norm.out_ND[:B], inverse_rms_N=norm.inverse_rms_N[:B])


def decode_step(model: Transformer, slots: list[CacheSlots | None]) -> DecodeStep:
    """New tokens as the engine's fused op takes them."""
    return DecodeStep(model.rotary.whole, model.forms, model.weights.blocks, slots)


def is_fused(model: Transformer, rows: int, tokens: int) -> bool:
    """Does the engine have a fused op for so many new tokens of each row?"""
    engine, forms, dim = model.backend, model.forms, model.config.dim
    return isinstance(engine, FusingBackend) and (
        engine.fuses(forms, rows, tokens)
        or engine.fused_tokens < tokens <= engine.longest_prompts(forms, dim, rows)
    )


def run_cached(
    model: Transformer,
    rows: Rows,
    buffers: PassBuffers,
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
