"""Tokens that a backend chooses itself: a step feeds the next one on the device, and nothing but the chosen ids comes to the host.

As the host need not know a token for the next one to be computed, it may ask for a step ahead of taking the last one's result, so that the
device does not wait for it.
"""

import weakref
from typing import Any

import numpy as np

from nanoeuler.backend.flat_places import places
from nanoeuler.model.cache import Cache, CacheMemory
from nanoeuler.model.transformer import Transformer

AHEAD = 2
"""Results that may be waiting on the host at a time: that of a step, and of the one asked for ahead."""


class Choices:
    """The rows of a cache continued together, a token a step; for a backend that offers the op `choose`.

    The step is recorded once and does the same for each token: tokens, places in the cache, counters of the random numbers and settings lie on the
    device, where every step leaves them as the next one needs them.
    """

    @classmethod
    def of(cls, model: Transformer, cache: Cache, allowed_V: np.ndarray) -> "Choices":
        """Those that were recorded for the memory of `cache`, or new ones. `allowed_V` is True for the tokens that may be chosen at all."""
        rows, known = len(cache.lengths), cache.memory.choices
        if rows not in known or known[rows].allowed_V is not allowed_V:
            known[rows] = cls(model, cache.memory, rows, allowed_V)
        return known[rows]

    def __init__(self, model: Transformer, memory: CacheMemory, B: int, allowed_V: np.ndarray):
        backend = model.backend
        model.need_positions(memory.capacity + 1)
        self.model = weakref.proxy(
            model
        )  # which holds this, by way of the memory of a cache that is gone
        self.allowed_V, self.rope_table = allowed_V, model.rope_table
        self.keys, self.values = (
            [slots[:B] for slots in layers] for layers in (memory.keys, memory.values)
        )
        self.buffers = model.plan(B, 1, training=False)
        arrays = [
            np.zeros(B, np.int32),
            np.zeros(B, np.int32),
            np.zeros(B, np.int64),
            np.zeros(4, np.int64),
        ]
        parts = places(arrays)
        self.flat = backend.zeros((parts[-1].stop,), np.uint8)
        self.tokens, self.lengths, self.draws, self.settings = (
            self.flat[part].view(array.dtype) for part, array in zip(parts, arrays, strict=True)
        )
        self.allowed = backend.from_host(allowed_V.astype(np.uint8))
        self.logits = backend.empty((B, model.columns.head), np.float32)
        self.chosen = backend.zeros((B,), np.int32)
        self.copies = [backend.host_copy(self.chosen) for _ in range(AHEAD)]
        self.asked, self.taken = 0, 0
        self.recorded: Any = None

    def start(
        self,
        cache: Cache,
        tokens: np.ndarray,
        counts: np.ndarray,
        sampling: Any,
        draws_B: np.ndarray,
    ) -> None:
        """Append tokens to the rows of `cache`, as `Transformer.extend` does, and choose what comes behind them; what was asked for ahead is forgotten.

        `draws_B` numbers the tokens to be chosen, for the random numbers.
        """
        self.taken = self.asked
        shares, seed = (
            np.array([sampling.temperature, sampling.top_p]),
            np.array([sampling.seed], np.uint64),
        )
        settings = np.concatenate([shares.view(np.int64), seed.view(np.int64), [sampling.top_k]])
        values = [np.asarray(draws_B, np.int64), settings]
        if tokens.shape[1] == 1:
            self.model.backend.load(
                self.flat, [np.asarray(tokens[:, 0], np.int32), cache.lengths, *values]
            )
            cache.lengths += 1
            self.ask()
        else:
            hidden = self.model.extend_hidden(cache, tokens, counts)
            self.model.backend.load(
                self.flat, [np.zeros(len(tokens), np.int32), cache.lengths, *values]
            )
            self.model.backend.run(lambda: self.choose_behind(hidden))
            self.copy()

    def choose_behind(self, hidden_BD: Any) -> None:
        backend = self.model.backend
        backend.linear(hidden_BD, self.model.weights.first_head, self.logits)
        backend.choose(
            self.logits, self.allowed, self.settings, self.draws, self.chosen, self.tokens, None
        )

    def ask(self) -> None:
        """Ask for another token of every row, behind the last one asked for."""
        self.recorded = self.model.backend.run(self.step, self.recorded)
        self.copy()

    def step(self) -> None:
        model, backend = self.model, self.model.backend
        x = model.append_one(
            self.keys, self.values, self.tokens, self.lengths, self.buffers, self.rope_table
        )
        backend.next_logits(
            x,
            model.weights.final_norm,
            model.config.norm_epsilon,
            model.weights.first_head,
            self.logits,
        )
        backend.choose(
            self.logits,
            self.allowed,
            self.settings,
            self.draws,
            self.chosen,
            self.tokens,
            self.lengths,
        )

    def copy(self) -> None:
        self.copies[self.asked % AHEAD].start()
        self.asked += 1

    def take(self) -> np.ndarray:
        """The ids of the oldest step asked for and not taken, (B,); −1 where a row's logits are not finite."""
        self.taken += 1
        return self.copies[(self.taken - 1) % AHEAD].wait()
