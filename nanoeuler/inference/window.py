"""The part of each sequence that the model has in view: its newest tokens, with their keys and values cached.

A model is trained for `context` positions. When a row outgrows them it slides: its newest three quarters are kept, read again
from position 0, and the oldest are dropped; so the cost of reading again is paid once in `context / 4` tokens, not at every
token. What was dropped is counted, for the caller to say so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoeuler.inference.sampling import Sampling, checked, choose
from nanoeuler.model.choosing import Choices
from nanoeuler.model.config import round_up
from nanoeuler.model.transformer import Transformer

PROMPT_PLACES = 32
"""Tokens that a device reads come in multiples of this many."""


class ContextWindow:
    """Rows of tokens that grow together. Row b's tokens in view are `tokens[b]`; `dropped[b]` older ones have left it."""

    def __init__(self, model: Transformer, rows: int, longest: int):
        """`longest` is the most tokens that a row will ever hold; the cache takes no more than that, nor than the context."""
        self.model = model
        self.context = model.config.context
        self.cache = model.new_cache(rows, min(self.context, longest))
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.dropped = [0] * rows
        self.choices: Choices | None = None
        self.ahead: tuple[Any, ...] | None = None
        """What the step goes by that `choices` was asked for ahead: tokens, their places, the draws and the settings."""

    def read(self, new: Sequence[Sequence[int]]) -> np.ndarray:
        """Append new[b] (one token or more) to row b, for every row; the logits behind each row's last token, (rows, V)."""
        return self.model.backend.to_host(self.model.extend(self.cache, *self.pending(new)))

    def choose(
        self,
        new: Sequence[Sequence[int]],
        sampling: Sampling,
        positions_B: np.ndarray,
        allowed_V: np.ndarray,
    ) -> np.ndarray:
        """`read`, and the token that `sampling.choose` chooses behind each row: on the device, where that can choose."""
        if not self.model.backend.chooses:
            return choose(self.read(new), sampling, positions_B, allowed_V)
        tokens, counts = self.pending(new)
        choices = Choices.of(self.model, self.cache, allowed_V)
        if choices is self.choices and self.ahead == plan(
            tokens, self.cache.lengths, positions_B, sampling
        ):
            self.cache.lengths += 1
        else:
            self.choices = choices
            choices.start(self.cache, tokens, counts, sampling, positions_B)
        # the next step is under way while the caller looks at this one's tokens; a full row goes on otherwise
        goes_on = int(self.cache.lengths.max()) < self.cache.capacity
        if goes_on:
            choices.ask()
        chosen = checked(choices.take())
        self.ahead = (
            plan(chosen[:, None], self.cache.lengths, positions_B + 1, sampling)
            if goes_on
            else None
        )
        return chosen

    def pending(self, new: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Append new[b] to row b; what the cache lacks of every row, padded to a rectangle, and how much of it."""
        pending = [self.append(row, tokens) for row, tokens in enumerate(new)]
        slid = [row for row, tokens in enumerate(pending) if len(tokens) > len(new[row])]
        if len(slid) < len(pending):  # together, every row would be padded to the length of those
            for row in slid:
                self.model.extend(self.cache.row(row), np.array([pending[row][:-1]]))
                pending[row] = pending[row][-1:]
        counts = np.array([len(tokens) for tokens in pending], np.int32)
        width = int(counts.max())
        if width > 1 and self.model.backend.chooses:
            # a device records what it reads: more prompts are of one length
            width = round_up(width, PROMPT_PLACES)
        padded = np.zeros((len(pending), width), np.int32)
        for row, tokens in enumerate(pending):
            padded[row, : len(tokens)] = tokens
        return padded, counts

    def append(self, row: int, new: Sequence[int]) -> Sequence[int]:
        """Note `new` as in view and return what the cache still lacks: `new`, or after a slide all that was kept."""
        view = self.tokens[row]
        view.extend(new)
        if len(view) <= self.context:
            return new
        excess = len(view) - (self.context - self.context // 4)
        self.dropped[row] += excess
        del view[:excess]
        self.cache.truncate(row, 0)
        return view

    def remove(self, row: int) -> None:
        """Give up `row`; the last row takes its place."""
        self.cache.remove(row)
        self.ahead = None
        for values in (self.tokens, self.dropped):
            values[row] = values[-1]
            values.pop()


def plan(
    tokens: np.ndarray, lengths_B: np.ndarray, positions_B: np.ndarray, sampling: Sampling
) -> tuple[Any, ...]:
    return tokens.tolist(), lengths_B.tolist(), np.asarray(positions_B).tolist(), sampling
