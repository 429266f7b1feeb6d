"""Tokens that an engine chooses itself: a step feeds the next one on the device, and nothing but
the chosen ids comes to the host.

The host need not know a token for the next one to be computed. So it may ask for a step before it
takes the result of the last one, and the device does not wait for it.
"""

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from nanoeuler.backend.records import Array, Norm
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.cache import Cache, CacheMemory, decode_step, is_fused, run_cached

if TYPE_CHECKING:
    from nanoeuler.model.transformer import Transformer

AHEAD = 3
"""Steps that may have been asked for and not taken."""


class SamplingSettings(Protocol):
    """How a token is drawn; see `nanoeuler.inference.sampling`."""

    def __hash__(self) -> int: ...  # equal settings are packed once

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def seed(self) -> int: ...


class Choices:
    """The rows of a cache continued together, a token a step; for a `ChoosingBackend`.

    The step is recorded once and does the same for each token: tokens, lengths, counters of the
    random numbers and settings lie on the device, where every step leaves them as the next one
    needs them. Behind a prompt, the choice is recorded with it.
    """

    following: tuple[np.ndarray, Sequence[SamplingSettings], np.ndarray] | None = None
    """Inputs of the step behind a prompt, which are loaded if it is asked for."""

    @classmethod
    def of(
        cls, model: "Transformer", cache: Cache, allowed_V: np.ndarray, rows: int = 0
    ) -> "Choices":
        """The choices recorded for the memory of `cache`, or new ones.

        `allowed_V` is True for the tokens that may be chosen at all. More `rows` than the cache has
        make steps that serve caches of up to that many; the memory must have them.
        """
        key, known = (rows or len(cache.lengths), 1), cache.memory.choices
        if key not in known or known[key].allowed_V is not allowed_V:
            known[key] = cls(model, cache.memory, key[0], allowed_V)
        return known[key]

    def __init__(self, model: "Transformer", memory: CacheMemory, B: int, allowed_V: np.ndarray):
        backend = model.backend
        model.need_positions(memory.capacity + 1)
        # the model may hold this, by way of the memory of a cache that is gone
        self.model = weakref.proxy(model)
        self.allowed_V, self.rope_table = allowed_V, model.rope_table
        self.slots = memory.part(slice(0, B))
        fused = is_fused(model, B, 1)
        self.buffers = model.buffers(B, 1, stream_only=fused)
        self.decode = decode_step(model, self.slots) if fused else None
        self.no_rows = np.zeros(B, np.int32)
        self.no_inputs = np.zeros(B, np.int64), np.zeros((B, 4), np.int64)
        """Of a choice: counters of the random numbers, and settings."""
        self.tokens = backend.feed([self.no_rows])
        """Each row's last one, which was fed or chosen."""
        self.feed = backend.feed([self.no_rows, *self.no_inputs])
        self.no_starts = backend.zeros((B, 1), np.int32)
        self.allowed = backend.from_host(allowed_V.astype(np.uint8))
        self.logits = backend.empty((B, model.heads.rows), np.float32)
        self.chosen = backend.zeros((B,), np.int32)
        self.ring = backend.host_ring(self.chosen, AHEAD)
        choices = weakref.proxy(self)  # which holds the program
        self.program = backend.program(lambda: choices.step())

    def start(
        self,
        cache: Cache,
        tokens: np.ndarray,
        counts: np.ndarray,
        samplings: Sequence[SamplingSettings],
        draws_B: np.ndarray | Sequence[int],
    ) -> None:
        """Append tokens to the rows of `cache`, as `Transformer.extend` does, and choose the next.

        What was asked for ahead is forgotten. `draws_B` numbers the tokens to be chosen, for the
        random numbers.
        """
        self.ring.forget()
        self.following = None
        inputs = self.inputs(samplings, draws_B)
        if tokens.shape[1] == 1:
            self.tokens.load(filled(self.no_rows, tokens[:, 0]))
            self.load(cache.lengths, *inputs)
            cache.lengths += 1
            self.ask()
        else:
            self.model.append(cache, tokens, counts, choosing=Choosing(self, inputs))
            self.ring.expect()
            self.following = cache.lengths.copy(), samplings, np.add(draws_B, 1)

    def again(self, samplings: Sequence[SamplingSettings], draws_B: Sequence[int]) -> None:
        """Choose once more from the logits behind a prompt that was just read."""
        self.load([0], *self.inputs(samplings, draws_B))
        self.model.backend.program(lambda: self.choose(*self.feed.arrays[1:])).run()
        self.ring.expect()

    def inputs(
        self, samplings: Sequence[SamplingSettings], draws_B: np.ndarray | Sequence[int]
    ) -> list[np.ndarray]:
        """What a choice takes; rows that the cache lacks get zeros."""
        no_draws, no_settings = self.no_inputs
        packed_B4 = [packed(each) for each in samplings]
        return [filled(no_draws, draws_B), filled(no_settings, packed_B4)]

    def load(
        self, lengths: np.ndarray | Sequence[int], draws_B: np.ndarray, settings_B4: np.ndarray
    ) -> None:
        """Hand over a step's inputs, but for its tokens."""
        self.feed.load(filled(self.no_rows, lengths), draws_B, settings_B4)

    def ask(self) -> None:
        """Ask for another token of every row, behind the last one asked for."""
        if self.following:
            lengths, samplings, draws_B = self.following
            self.load(lengths, *self.inputs(samplings, draws_B))
            self.following = None
        self.program.run()
        self.ring.expect()

    def step(self) -> None:
        """Append the last chosen tokens, and choose the next."""
        model, buffers = self.model, self.buffers
        (tokens,), (lengths, draws, settings) = self.tokens.arrays, self.feed.arrays
        model.embed(tokens, lengths, buffers)
        rows = Rows(lengths, self.no_starts, lengths, self.rope_table)
        run_cached(model, rows, buffers, self.slots, self.decode)
        self.choose_behind(buffers.norms[-1], draws, settings, lengths)

    def choose_behind(
        self, norm: Norm, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None
    ) -> None:
        """Choose from the logits behind each row of the stream at `norm`."""
        model = self.model
        model.backend.next_logits(norm, model.weights.first_head, self.logits)
        self.choose(draws_B, settings_B4, lengths_B)

    def choose(self, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None) -> None:
        chosen = self.chosen, *self.tokens.arrays
        inputs = self.logits, self.allowed, settings_B4, draws_B
        self.model.backend.choose(*inputs, *chosen, lengths_B, self.ring)

    @property
    def waiting(self) -> int:
        """Steps that were asked for and not taken."""
        return self.ring.waiting

    def take(self) -> np.ndarray:
        """The ids of the oldest step asked for and not taken, (B,).

        −1 where a row's logits are not finite.
        """
        return self.ring.take()


class Choosing(NamedTuple):
    """A choice behind a prompt."""

    choices: Choices
    inputs: Sequence[np.ndarray]  # see `Choices.inputs`


class DraftedChoices(Choices):
    """The same with drafts: a step appends T = 1 + M tokens to every row, of which M were drafted,
    chooses behind each of them, keeps those behind right drafts, and drafts again."""

    @classmethod
    def of_drafts(
        cls, model: "Transformer", cache: Cache, allowed_V: np.ndarray, drafts: int
    ) -> "DraftedChoices":
        """The choices recorded for the memory of `cache` and that many drafts, or new ones."""
        key, known = (len(cache.lengths), 1 + drafts), cache.memory.choices
        if key not in known or known[key].allowed_V is not allowed_V:
            known[key] = cls(model, cache.memory, key[0], allowed_V, drafts)
        return known[key]

    def __init__(
        self,
        model: "Transformer",
        memory: CacheMemory,
        B: int,
        allowed_V: np.ndarray,
        drafts: int,
    ):
        backend, (M, T), rows = model.backend, (drafts, 1 + drafts), model.heads.rows
        H = min(model.config.mtp_heads - 1, M)  # by heads, where the text has none
        model.need_positions(memory.capacity + T)
        self.model = weakref.proxy(model)
        self.allowed_V, self.rope_table = allowed_V, model.rope_table
        self.slots = memory.part(slice(0, B))
        fused = is_fused(model, B, T)
        self.buffers = model.buffers(B, T, stream_only=fused)
        self.decode = decode_step(model, self.slots) if fused else None
        tokens, text_BS = np.zeros(B, np.int32), np.zeros((B, memory.capacity), np.int32)
        lengths, draws = np.zeros(B, np.int32), np.zeros(B, np.int64)
        drafted_BH = np.zeros((B, H), np.int32)
        fed = tokens, drafted_BH, text_BS, lengths, draws, np.zeros(4, np.int64)
        self.feed = backend.feed([*fed])
        self.no_starts, self.ids, self.positions, self.chosen, self.unused = (
            backend.zeros((B, T), np.int32) for _ in range(5)
        )
        self.drafts = backend.zeros((B, M), np.int32)
        self.counters = backend.zeros((B, T), np.int64)
        self.logits = backend.empty((B * T, rows), np.float32)
        self.allowed = backend.from_host(allowed_V.astype(np.uint8))
        # the further heads draft behind the last token that is kept, greedily
        final = self.buffers.norms[-1]
        shape = B, model.config.dim
        self.last = final._replace(
            x_ND=backend.empty(shape, backend.residual),
            out_ND=backend.empty(shape, backend.activation),
            inverse_rms_N=backend.empty((B,)),
        )
        self.further = model.weights.heads[rows : rows * (1 + H)]
        self.further_logits = backend.empty((B, H * rows), np.float32)
        self.greedy, self.no_draws = (backend.zeros((n,), np.int64) for n in (4, B * H))
        self.unread = backend.zeros((B * H,), np.int32)
        self.ring = backend.host_ring(self.chosen, AHEAD)
        choices = weakref.proxy(self)  # which holds the program
        self.program = backend.program(lambda: choices.step())

    def start_behind(
        self,
        cache: Cache,
        tokens: np.ndarray,
        texts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        draws_B: np.ndarray | Sequence[int],
    ) -> None:
        """Append a token to each row of `cache`, with drafts: from `texts`, the tokens that the
        cache has, or as good as any.

        `sampling` holds for all rows.
        """
        self.ring.forget()
        drafted_BH, text_BS = (np.zeros(a.shape, np.int32) for a in self.feed.arrays[1:3])
        for row, text in enumerate(texts):
            text_BS[row, : len(text)] = text
        lengths, draws = cache.lengths.copy(), np.array(draws_B, np.int64)
        fed = tokens[:, 0].copy(), drafted_BH, text_BS, lengths, draws, packed(sampling)
        self.feed.load(*fed)
        self.ask()

    def step(self) -> None:
        """Append the last chosen tokens with their drafts, choose, and draft again."""
        model, buffers, backend = self.model, self.buffers, self.model.backend
        tokens, drafted, text, lengths, draws, settings = self.feed.arrays
        laid_out = self.drafts, self.ids, self.positions, self.counters
        backend.lay_out_drafts(tokens, drafted, text, lengths, draws, *laid_out)
        model.embed(self.ids.reshape(-1), self.positions.reshape(-1), buffers)
        rows = Rows(self.positions.reshape(-1), self.no_starts, lengths, self.rope_table)
        run_cached(model, rows, buffers, self.slots, self.decode)
        final = buffers.norms[-1]
        backend.next_logits(final, model.weights.first_head, self.logits)
        counters, chosen, unused = (
            array.reshape(-1) for array in (self.counters, self.chosen, self.unused)
        )
        backend.choose(self.logits, self.allowed, settings, counters, chosen, unused, None)
        kept = tokens, lengths, draws, self.last.x_ND
        backend.keep_right(self.chosen, self.drafts, final.x_ND, *kept)
        if drafted.size:
            backend.next_logits(self.last, self.further, self.further_logits)
            logits = self.further_logits.reshape(-1, model.heads.rows)
            drawn = self.no_draws, self.unread, drafted.reshape(-1)
            backend.choose(logits, self.allowed, self.greedy, *drawn, None)
        self.ring.write()


def filled(like: np.ndarray, given: np.ndarray | Sequence) -> np.ndarray:
    """An array like another, which begins with what is given and goes on with zeros."""
    whole = np.zeros(like.shape, like.dtype)
    whole[: len(given)] = given
    return whole


@functools.lru_cache(maxsize=256)
def packed(sampling: SamplingSettings) -> np.ndarray:
    """Settings as `Backend.choose` takes them, (4,) in 8 bytes each."""
    shares = np.array([sampling.temperature, sampling.top_p], np.float64).view(np.int64)
    seed = np.array([sampling.seed], np.uint64).view(np.int64)
    return np.concatenate([shares, seed, [sampling.top_k]])
