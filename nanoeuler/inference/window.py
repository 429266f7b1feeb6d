"""The part of each sequence that the model has in view: its newest tokens, with their keys and values cached.

A model is trained for `context` positions. When a row outgrows them it slides: its newest three quarters are kept, read again
from position 0, and the oldest are dropped; so the cost of reading again is paid once in `context / 4` tokens, not at every
token. What was dropped is counted, for the caller to say so.
"""

from collections.abc import Sequence

import numpy as np

from nanoeuler.model.transformer import Transformer


class ContextWindow:
    """Rows of tokens that grow together. Row b's tokens in view are `tokens[b]`; `dropped[b]` older ones have left it."""

    def __init__(self, model: Transformer, rows: int, longest: int):
        """`longest` is the most tokens that a row will ever hold; the cache takes no more than that, nor than the context."""
        self.model = model
        self.context = model.config.context
        self.cache = model.new_cache(rows, min(self.context, longest))
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.dropped = [0] * rows

    def read(self, new: Sequence[Sequence[int]]) -> np.ndarray:
        """Append new[b] (one token or more) to row b, for every row; the logits behind each row's last token, (rows, V)."""
        pending = [self.append(row, tokens) for row, tokens in enumerate(new)]
        slid = [row for row, tokens in enumerate(pending) if len(tokens) > len(new[row])]
        if len(slid) < len(pending):  # together, every row would be padded to the length of those
            for row in slid:
                self.model.extend(self.cache.row(row), np.array([pending[row][:-1]]))
                pending[row] = pending[row][-1:]
        counts = np.array([len(tokens) for tokens in pending], np.int32)
        padded = np.zeros((len(pending), counts.max()), np.int32)
        for row, tokens in enumerate(pending):
            padded[row, : len(tokens)] = tokens
        return self.model.backend.to_host(self.model.extend(self.cache, padded, counts))

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
        for values in (self.tokens, self.dropped):
            values[row] = values[-1]
            values.pop()
