"""Steps that append tokens to every row of a batch: chosen by the host, or by the device.

A step appends one token to each row. A row that is alone may get several, which were drafted: see
`inference/speculation.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.backend.capabilities import NOT_KEPT
from nanoeuler.backend.ops import Backend
from nanoeuler.inference.sampling import checked, choose
from nanoeuler.inference.speculation import (
    DeviceSpeculation,
    HostSpeculation,
    Speculation,
    Taken,
)
from nanoeuler.inference.window import NO_DRAFTS, check_drafts
from nanoeuler.model.cache import Cache
from nanoeuler.model.choosing import AHEAD, Choices, DraftedChoices
from nanoeuler.model.transformer import Transformer
from nanoeuler.serving.jobs import Row


class Step(NamedTuple):
    """Rows that took tokens, and the logits behind their choice, where a row wants them."""

    rows: list[Row]
    logits_BV: np.ndarray | None


def wants_logits(rows: Sequence[Row]) -> bool:
    return any(row.job.likeliest is not None for row in rows)


class HostSteps:
    """The host chooses the tokens."""

    def __init__(
        self, model: Transformer, cache: Cache, allowed_V: np.ndarray, *, speculates: bool
    ):
        self.model, self.cache, self.allowed_V = model, cache, allowed_V
        self.speculation: Speculation | None = None
        """What drafts brought to replies that were alone, and how many the next pass takes."""
        if speculates:
            self.expect_drafts()

    def expect_drafts(self) -> None:
        """Forget what drafts brought."""
        self.speculation = Speculation.of(self.model)

    @staticmethod
    def spare(engine: Backend) -> int:
        """Places that a row needs in the cache behind its last token."""
        return 0

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
            row.ids.append(int(choose(logits_1V, row.sampling, [row.position], self.allowed_V)[0]))

    def next(self, rows: list[Row]) -> Step:
        """Let each row take its next token, or tokens. `rows` are those of the cache."""
        if isinstance(self.speculation, HostSpeculation) and self.may_draft(rows):
            self.next_drafted(rows[0], self.speculation)
            return Step(list(rows), None)
        tokens_B1 = np.array([row.ids[-1:] for row in rows], np.int32)
        logits_BV = self.model.backend.to_host(self.model.extend(self.cache, tokens_B1))
        samplings, positions = [row.sampling for row in rows], [row.position for row in rows]
        chosen_B = choose(logits_BV, samplings, positions, self.allowed_V)
        for row, token in zip(rows, chosen_B.tolist(), strict=True):
            row.ids.append(token)
            row.drafts = NO_DRAFTS
        return Step(list(rows), logits_BV)

    def may_draft(self, rows: list[Row]) -> bool:
        return len(rows) == 1 and not wants_logits(rows)

    def next_drafted(self, row: Row, speculation: HostSpeculation) -> None:
        tokens_11, count = np.array([row.ids[-1:]], np.int32), np.ones(1, np.int32)
        behind = tokens_11, count, [row.drafts], [row.whole_text], speculation
        inputs = row.sampling, np.array([row.position]), self.allowed_V
        (taken,), (row.drafts,) = check_drafts(self.model, self.cache, *behind, *inputs)
        row.ids += taken.chosen
        speculation.note([taken], len(taken.chosen))

    def forget(self) -> None:
        """Start anew, after all rows have left."""


class DeviceSteps(HostSteps):
    """The device of a `ChoosingBackend` chooses, and is some steps ahead of the host.

    So a step may have been for rows that have left since, and not for those that have joined. Rows
    are padded to a power of two, so that few steps are recorded.
    """

    def __init__(
        self, model: Transformer, cache: Cache, allowed_V: np.ndarray, *, speculates: bool
    ):
        super().__init__(model, cache, allowed_V, speculates=speculates)
        self.most_rows = len(cache.lengths)
        self.rows: list[Row] = []
        """Those of the steps that were asked for and not taken."""
        self.scored = False
        self.choices: Choices | None = None
        self.drafts = 0
        """Drafts of each of these steps."""

    @staticmethod
    def spare(engine: Backend) -> int:
        # a row that ends is seen to end when its next steps are under way
        return AHEAD * engine.drafted_tokens

    def first(
        self, prompt: Cache, tokens: np.ndarray, counts: np.ndarray, rows: list[Row]
    ) -> np.ndarray | None:
        choices = Choices.of(self.model, prompt, self.allowed_V)
        for row in rows:
            if row is rows[0]:
                choices.start(prompt, tokens, counts, [row.sampling], [row.position])
            else:
                choices.again([row.sampling], [row.position])
            row.ids.append(int(checked(choices.take())[0]))
        return self.logits(choices, 1) if wants_logits(rows) else None

    def first_of_each(
        self, prompts: Cache, tokens: np.ndarray, counts: np.ndarray, rows: list[Row]
    ) -> None:
        """Append whole prompts, one for each row, and let each take its first token.

        `prompts` has rows to spare where their number is no power of two.
        """
        choices = Choices.of(self.model, prompts, self.allowed_V)
        samplings, positions = [row.sampling for row in rows], [row.position for row in rows]
        choices.start(prompts, tokens, counts, samplings, positions)
        for row, token in zip(rows, choices.take().tolist(), strict=False):
            row.ids.append(token)
        checked(np.array([row.ids[0] for row in rows]))

    def next(self, rows: list[Row]) -> Step:
        if self.rows and all(row.left for row in self.rows):
            self.forget()
        if not self.rows:
            self.start(rows)
        step, choices = self.rows, self.choices
        assert choices is not None
        if rows == step:
            self.ask_ahead(choices, rows)
        taken_B = choices.take()
        if self.drafts:
            self.take_drafted(step[0], taken_B[0])
        else:
            chosen_B = checked(taken_B[: len(step)])
            for row, token in zip(step, chosen_B.tolist(), strict=True):
                row.ids.append(token)
            if self.speculation and self.may_draft(step):
                self.speculation.note([Taken(chosen_B.tolist())], 1)
        logits_BV = self.logits(choices, len(step)) if self.scored else None
        if choices.waiting == 0:
            self.start(rows)
        return Step(step, logits_BV)

    def take_drafted(self, row: Row, taken_T: np.ndarray) -> None:
        ids_N = checked(taken_T[taken_T != NOT_KEPT])
        assert self.speculation is not None
        taken = Taken(ids_N.tolist(), self.drafts, row.whole_text.repeated > 0)
        self.speculation.note([taken], len(ids_N))
        row.ids += taken.chosen
        self.cache.lengths[0] += len(ids_N)

    def start(self, rows: list[Row]) -> None:
        """Ask for a step behind the tokens that the host has."""
        tokens_B1 = np.array([row.ids[-1:] for row in rows], np.int32)
        samplings, positions = [row.sampling for row in rows], [row.position for row in rows]
        self.drafts, self.scored = self.wanted_drafts(rows), wants_logits(rows)
        model, cache = self.model, self.cache
        if self.drafts:
            drafted = DraftedChoices.of_drafts(model, cache, self.allowed_V, self.drafts)
            read = rows[0].whole_text.tokens[:-1]
            drafted.start_behind(cache, tokens_B1, [read], samplings[0], positions)
            self.choices = drafted
        else:
            padded = min(1 << (len(rows) - 1).bit_length(), self.most_rows)
            self.choices = Choices.of(model, cache, self.allowed_V, padded)
            self.choices.start(cache, tokens_B1, np.ones(len(rows)), samplings, positions)
        self.rows = list(rows)

    def ask_ahead(self, choices: Choices, rows: list[Row]) -> None:
        """Ask for more of the same steps: the device has their tokens.

        Where drafts come and go, for only one step more, as `generate` does.
        """
        if self.scored or self.wanted_drafts(rows) != self.drafts:
            return
        if self.drafts and self.room(rows[0]) < 2 * (1 + self.drafts):
            return
        may_draft = self.speculation is not None and self.may_draft(rows)
        while choices.waiting < (2 if may_draft else AHEAD):
            if not self.drafts:
                self.cache.lengths += 1
            choices.ask()

    def wanted_drafts(self, rows: list[Row]) -> int:
        if not (isinstance(self.speculation, DeviceSpeculation) and self.may_draft(rows)):
            return 0
        return self.speculation.wanted([rows[0].whole_text], self.room(rows[0]))

    def room(self, row: Row) -> int:
        """Tokens that its context has room for, beside those in the cache."""
        context = self.cache.capacity - self.spare(self.model.backend)
        return context - (row.position - 1)

    def logits(self, choices: Choices, rows: int) -> np.ndarray:
        return self.model.backend.to_host(choices.logits[:rows, : len(self.allowed_V)])

    def forget(self) -> None:
        self.rows = []
