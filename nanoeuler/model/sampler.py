"""Tokens that a device samples itself: each step feeds the next one there, and only ids come back.

The host need not know a token for the next one to be computed. So it launches some steps before it
collects the ids of the first, and the device does not wait for it.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.backend.records import Array, ChoiceRows, DraftRows, Norm
from nanoeuler.model.appending import CachedPass, append, run_cached
from nanoeuler.model.blocks.block import Rows
from nanoeuler.model.cache import Cache, CacheMemory
from nanoeuler.model.transformer import Transformer

AHEAD = 3
"""Most steps that are launched and not collected."""


class DeviceLoop(CachedPass, ABC):
    """A step of T tokens for each row of a cache, on a `ChoosingBackend`.

    It is recorded once and does the same each time: all that the next step needs lies on the
    device, where this one leaves it.
    """

    @classmethod
    def of(
        cls,
        model: Transformer,
        cache: Cache,
        allowed_V: np.ndarray,
        *,
        rows: int = 0,
        tokens: int = 1,
    ) -> Self:
        """The one recorded for the memory of `cache`, or a new one.

        One of more `rows` than the cache has serves caches of up to that many; the memory must
        have them.
        """
        sizes, known = (rows or len(cache.lengths), tokens), cache.memory.samplers
        key = cls, *sizes
        if key not in known or known[key].allowed_V is not allowed_V:
            known[key] = cls(model, cache.memory, *sizes, allowed_V)
        return known[key]

    def __init__(
        self, model: Transformer, memory: CacheMemory, rows: int, tokens: int, allowed_V: np.ndarray
    ):
        """`allowed_V` is True for the tokens that may be sampled at all."""
        super().__init__(model, memory, rows, tokens)
        backend = model.backend
        assert isinstance(backend, ChoosingBackend)
        self.backend, self.allowed_V = backend, allowed_V
        self.buffers = model.buffers(rows, tokens, stream_only=self.fused)
        self.no_starts = backend.zeros((rows, tokens), np.int32)
        self.allowed = backend.from_host(allowed_V.astype(np.uint8))
        self.logits = backend.empty((rows * tokens, model.heads.rows), np.float32)
        self.sampled = backend.zeros((rows, tokens), np.int32)
        self.ring = backend.runtime.host_ring(self.sampled, AHEAD)
        """The ids of each step, (B, T): −1 where a row's logits are not finite, and `NOT_KEPT`
        behind a wrong draft."""
        self.rings = [self.ring]
        """All that comes back."""
        loop = weakref.proxy(self)  # which holds the program
        self.program = backend.runtime.program(lambda: loop.step())

    @abstractmethod
    def step(self) -> None:
        """Append the tokens sampled last, and sample the next."""

    def append_new(self, ids_N: Array, positions_N: Array, lengths_B: Array) -> Norm:
        """Append tokens to the cache. Returns the norm to be taken behind them."""
        model, buffers = self.model, self.buffers
        model.embed(ids_N, positions_N, buffers)
        rows = Rows(positions_N, self.no_starts, lengths_B, self.rope_table)
        run_cached(model, rows, buffers, self.slots, self.decode)
        return buffers.norms[-1]

    def launch(self) -> None:
        """Launch another step, behind the last one launched."""
        self.program.run()
        self.expect()

    def expect(self) -> None:
        """The ids of a step just launched will come."""
        for ring in self.rings:
            ring.expect()

    def forget(self) -> None:
        """Results of steps launched before are discarded."""
        for ring in self.rings:
            ring.forget()


class Sampler(DeviceLoop):
    """Samples one token of each row a step. The first may be sampled behind a prompt."""

    def __init__(
        self, model: Transformer, memory: CacheMemory, rows: int, tokens: int, allowed_V: np.ndarray
    ):
        super().__init__(model, memory, rows, tokens, allowed_V)
        self.no_rows = np.zeros(rows, np.int32)
        self.no_inputs = np.zeros(rows, np.int64), np.zeros((rows, 4), np.int64)
        """Counters of the random numbers, and settings."""
        self.tokens = self.backend.runtime.feed([self.no_rows])
        """Each row's last one, which was fed or sampled."""
        self.feed = self.backend.runtime.feed([self.no_rows, *self.no_inputs])
        self.following: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        """Inputs of the step behind a prompt, which are loaded if it is launched."""

    def start(
        self,
        cache: Cache,
        tokens: np.ndarray,
        counts: np.ndarray,
        settings: np.ndarray,
        draws_B: Sequence[int],
    ) -> None:
        """Append tokens to the rows of `cache`, as `append` does, and sample behind them.

        Results of steps launched before are discarded. `settings`, (B, 4), are those of
        `ChoosingBackend.choose`; `draws_B` numbers the tokens to be sampled, for the random
        numbers.
        """
        self.forget()
        self.following = None
        inputs = self.inputs(settings, draws_B)
        if tokens.shape[1] == 1:
            self.tokens.load(filled(self.no_rows, tokens[:, 0]))
            self.feed.load(filled(self.no_rows, cache.lengths), *inputs)
            cache.lengths += 1
            self.launch()
        else:
            append(self.model, cache, tokens, counts, behind=self.sample_behind, inputs=inputs)
            self.expect()
            self.following = cache.lengths.copy(), settings, np.add(draws_B, 1)

    def again(self, settings: np.ndarray, draws_B: Sequence[int]) -> None:
        """Sample once more from the logits behind a prompt that was just read."""
        self.feed.load(filled(self.no_rows, ()), *self.inputs(settings, draws_B))
        self.backend.runtime.program(lambda: self.sample(*self.feed.arrays[1:])).run()
        self.expect()

    def inputs(self, settings: np.ndarray, draws_B: np.ndarray | Sequence[int]) -> list[np.ndarray]:
        """Counters and settings; rows that the cache lacks get zeros."""
        no_draws, no_settings = self.no_inputs
        return [filled(no_draws, draws_B), filled(no_settings, settings)]

    def launch(self) -> None:
        if self.following:
            lengths, settings, draws_B = self.following
            self.feed.load(filled(self.no_rows, lengths), *self.inputs(settings, draws_B))
            self.following = None
        super().launch()

    def step(self) -> None:
        (tokens,), (lengths, draws, settings) = self.tokens.arrays, self.feed.arrays
        self.sample_behind(self.append_new(tokens, lengths, lengths), draws, settings, lengths)

    def sample_behind(
        self, norm: Norm, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None
    ) -> None:
        """Sample from the logits behind each row of the stream at `norm`."""
        self.model.heads.next_logits(norm, self.model.weights.first_head, self.logits)
        self.sample(draws_B, settings_B4, lengths_B)

    def sample(self, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None) -> None:
        (tokens,), sampled = self.tokens.arrays, self.sampled.reshape(-1)
        rows = ChoiceRows(settings_B4, draws_B, sampled, tokens, lengths_B)
        self.backend.choose(self.logits, self.allowed, rows, self.ring)


class ScoringSampler(Sampler):
    """Samples, and finds the log-probability of what it sampled."""

    def __init__(
        self, model: Transformer, memory: CacheMemory, rows: int, tokens: int, allowed_V: np.ndarray
    ):
        super().__init__(model, memory, rows, tokens, allowed_V)
        self.logprobs = self.backend.zeros((rows,))
        self.scores = self.backend.runtime.host_ring(self.logprobs, AHEAD)
        self.rings.append(self.scores)

    def sample(self, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None) -> None:
        super().sample(draws_B, settings_B4, lengths_B)
        logits_BV = self.logits[:, : len(self.allowed_V)]
        self.backend.score(logits_BV, self.sampled.reshape(-1), self.logprobs)
        self.scores.write()


class FormSampler(Sampler):
    """Samples once the host has found out which tokens may follow, while the device computes."""

    def __init__(
        self, model: Transformer, memory: CacheMemory, rows: int, tokens: int, allowed_V: np.ndarray
    ):
        super().__init__(model, memory, rows, tokens, allowed_V)
        self.free = np.full((rows, -(-len(allowed_V) // 32)), -1, np.int32).view(np.uint32)
        """Masks of rows that may go on with any token."""
        self.masks = self.backend.runtime.feed([self.free])
        loop = weakref.proxy(self)
        self.choice = self.backend.runtime.program(lambda: loop.choose_allowed())

    def start(self, cache: Cache, *inputs: Any) -> None:
        super().start(cache, *inputs)
        if self.following:  # a prompt was read, whose inputs are not those of `choose`
            *_, settings, draws_B = inputs
            self.again(settings, draws_B)

    def again(self, settings: np.ndarray, draws_B: Sequence[int]) -> None:
        self.following = None
        self.feed.load(self.no_rows, *self.inputs(settings, draws_B))

    def expect(self) -> None:
        """Nothing is sampled yet."""

    def sample_behind(
        self, norm: Norm, draws_B: Array, settings_B4: Array, lengths_B: Array | None = None
    ) -> None:
        self.model.heads.next_logits(norm, self.model.weights.first_head, self.logits)

    def choose(self, masks_BW: np.ndarray) -> None:
        """Sample tokens whose bits are set, for the step started last. See `ChoosingBackend`."""
        self.masks.load(np.concatenate([masks_BW, self.free[len(masks_BW) :]]))
        self.choice.run()
        self.ring.expect()

    def choose_allowed(self) -> None:
        (tokens,), (_, draws, settings) = self.tokens.arrays, self.feed.arrays
        rows = ChoiceRows(settings, draws, self.sampled.reshape(-1), tokens)
        self.backend.choose(self.logits, self.allowed, rows, self.ring, *self.masks.arrays)


class DraftingSampler(DeviceLoop):
    """Samples behind each row's last token and M drafts a step, and accepts the longest correct
    prefix of the drafts with the token after it."""

    def __init__(
        self, model: Transformer, memory: CacheMemory, rows: int, tokens: int, allowed_V: np.ndarray
    ):
        super().__init__(model, memory, rows, tokens, allowed_V)
        backend, B, T, M = self.backend, rows, tokens, tokens - 1
        H = min(model.config.mtp_heads - 1, M)  # by heads, where the text has none
        tokens_B, text_BS = np.zeros(B, np.int32), np.zeros((B, memory.capacity), np.int32)
        lengths_B, draws_B = np.zeros(B, np.int32), np.zeros(B, np.int64)
        drafted_BH, settings = np.zeros((B, H), np.int32), np.zeros(4, np.int64)
        self.feed = backend.runtime.feed(
            [tokens_B, drafted_BH, text_BS, lengths_B, draws_B, settings]
        )
        self.ids, self.positions, self.unused = (backend.zeros((B, T), np.int32) for _ in range(3))
        self.drafts = backend.zeros((B, M), np.int32)
        self.counters = backend.zeros((B, T), np.int64)
        # the MTP heads draft behind the last token that is accepted, greedily
        final, shape = self.buffers.norms[-1], (B, model.config.dim)
        self.last = final._replace(
            x_ND=backend.empty(shape, backend.residual),
            out_ND=backend.empty(shape, backend.activation),
            inverse_rms_N=backend.empty((B,)),
        )
        head_rows = model.heads.rows
        self.mtp_heads = model.weights.heads[head_rows : head_rows * (1 + H)]
        self.mtp_logits = backend.empty((B, H * head_rows), np.float32)
        self.greedy, self.no_draws = (backend.zeros((n,), np.int64) for n in (4, B * H))
        self.unread = backend.zeros((B * H,), np.int32)

    def start(
        self,
        cache: Cache,
        tokens: np.ndarray,
        texts: Sequence[Sequence[int]],
        settings: np.ndarray,
        draws_B: Sequence[int],
    ) -> None:
        """Append a token to each row of `cache`, with drafts from `texts`: the tokens that the
        cache has, or others of equal number.

        `settings` hold for all rows.
        """
        self.forget()
        drafted_BH, text_BS = (np.zeros(a.shape, np.int32) for a in self.feed.arrays[1:3])
        for row, text in enumerate(texts):
            text_BS[row, : len(text)] = text
        lengths, draws = cache.lengths.copy(), np.array(draws_B, np.int64)
        fed = tokens[:, 0].copy(), drafted_BH, text_BS, lengths, draws, settings
        self.feed.load(*fed)
        self.launch()

    def step(self) -> None:
        model, backend = self.model, self.backend
        tokens, drafted, text, lengths, draws, settings = self.feed.arrays
        rows = DraftRows(tokens, self.drafts, lengths, draws)
        backend.lay_out_drafts(rows, drafted, text, self.ids, self.positions, self.counters)
        final = self.append_new(self.ids.reshape(-1), self.positions.reshape(-1), lengths)
        model.heads.next_logits(final, model.weights.first_head, self.logits)
        counters, sampled, unused = (
            array.reshape(-1) for array in (self.counters, self.sampled, self.unused)
        )
        choices = ChoiceRows(settings, counters, sampled, unused)
        backend.choose(self.logits, self.allowed, choices)
        backend.accept_drafts(self.sampled, final.x_ND, rows, self.last.x_ND)
        if drafted.size:
            model.heads.next_logits(self.last, self.mtp_heads, self.mtp_logits)
            logits = self.mtp_logits.reshape(-1, model.heads.rows)
            choices = ChoiceRows(self.greedy, self.no_draws, self.unread, drafted.reshape(-1))
            backend.choose(logits, self.allowed, choices)
        self.ring.write()


def filled(like: np.ndarray, given: np.ndarray | Sequence) -> np.ndarray:
    """An array like another, which begins with what is given and goes on with zeros."""
    whole = np.zeros(like.shape, like.dtype)
    whole[: len(given)] = given
    return whole
