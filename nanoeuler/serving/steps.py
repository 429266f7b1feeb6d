"""Steps that append a token to every row of a batch: chosen by the host, or by the device."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.inference.sampling import checked, choose
from nanoeuler.model.cache import Cache
from nanoeuler.model.choosing import Choices
from nanoeuler.model.transformer import Transformer
from nanoeuler.serving.jobs import Row


class Step(NamedTuple):
    """Rows that took a token each, and the logits behind their choice, where a row wants them."""

    rows: list[Row]
    logits_BV: np.ndarray | None


def wants_logits(rows: Sequence[Row]) -> bool:
    return any(row.job.likeliest is not None for row in rows)


class HostSteps:
    """The host chooses the tokens."""

    spare = 0
    """Places that a row needs in the cache behind its last token."""

    def __init__(self, model: Transformer, cache: Cache, allowed_V: np.ndarray):
        self.model, self.cache, self.allowed_V = model, cache, allowed_V

    def first(
        self, prompt: Cache, tokens: np.ndarray, counts: np.ndarray, rows: list[Row]
    ) -> np.ndarray | None:
        """Append the last tokens of a prompt, and let each row take its first token.

        Returns the logits, (1, V), where a row wants them.
        """
        logits_1V = self.model.backend.to_host(self.model.extend(prompt, tokens, counts))
        self.choose_first(logits_1V, rows)
        return logits_1V

    def choose_first(self, logits_1V: np.ndarray, rows: list[Row]) -> None:
        for row in rows:
            row.take(int(choose(logits_1V, row.sampling, [row.position], self.allowed_V)[0]))

    def next(self, rows: list[Row]) -> Step:
        """Let each row take its next token. `rows` are those of the cache."""
        tokens_B1 = np.array([[row.token] for row in rows], np.int32)
        logits_BV = self.model.backend.to_host(self.model.extend(self.cache, tokens_B1))
        samplings, positions = [row.sampling for row in rows], [row.position for row in rows]
        chosen_B = choose(logits_BV, samplings, positions, self.allowed_V)
        for row, token in zip(rows, chosen_B.tolist(), strict=True):
            row.take(token)
        return Step(list(rows), logits_BV)

    def forget(self) -> None:
        """Start anew, after all rows have left."""


class DeviceSteps(HostSteps):
    """The device of a `ChoosingBackend` chooses, and is a step ahead of the host.

    So a step may have been for rows that have left since, and not for those that have joined. Rows
    are padded to a power of two, so that few steps are recorded.
    """

    spare = 1  # a row that ends is seen to end when its next step is under way

    def __init__(self, model: Transformer, cache: Cache, allowed_V: np.ndarray):
        super().__init__(model, cache, allowed_V)
        self.most_rows = len(cache.lengths)
        self.under_way: list[Row] = []
        """Rows of the step that was asked for and not taken."""
        self.choices: Choices | None = None

    def first(
        self, prompt: Cache, tokens: np.ndarray, counts: np.ndarray, rows: list[Row]
    ) -> np.ndarray | None:
        choices = Choices.of(self.model, prompt, self.allowed_V)
        for row in rows:
            if row is rows[0]:
                choices.start(prompt, tokens, counts, [row.sampling], [row.position])
            else:
                choices.again([row.sampling], [row.position])
            row.take(int(checked(choices.take())[0]))
        return self.logits(choices, 1) if wants_logits(rows) else None

    def next(self, rows: list[Row]) -> Step:
        if not self.under_way:
            self.start(rows)
        step, choices = self.under_way, self.choices
        assert choices is not None
        scored = wants_logits(step)
        ahead = rows == step and not scored
        if ahead:  # the device has their tokens
            self.cache.lengths += 1
            choices.ask()
        chosen_B = checked(choices.take()[: len(step)])
        logits_BV = self.logits(choices, len(step)) if scored else None
        for row, token in zip(step, chosen_B.tolist(), strict=True):
            row.take(token)
        if not ahead:
            self.start(rows)
        return Step(step, logits_BV)

    def start(self, rows: list[Row]) -> None:
        """Ask for a step behind the tokens that the host has."""
        padded = min(1 << (len(rows) - 1).bit_length(), self.most_rows)
        self.choices = Choices.of(self.model, self.cache, self.allowed_V, padded)
        tokens_B1 = np.array([[row.token] for row in rows], np.int32)
        samplings, positions = [row.sampling for row in rows], [row.position for row in rows]
        self.choices.start(self.cache, tokens_B1, np.ones(len(rows)), samplings, positions)
        self.under_way = list(rows)

    def logits(self, choices: Choices, rows: int) -> np.ndarray:
        return self.model.backend.to_host(choices.logits[:rows, : len(self.allowed_V)])

    def forget(self) -> None:
        self.under_way = []
