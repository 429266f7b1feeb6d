"""Speculative decoding: where drafts come from, and how many of them a pass takes.

Head 0 writes. What follows the next token is drafted: where the end of the text repeats an earlier
part, by what followed there (`Repeats`), and otherwise by the heads 1 … K − 1. A pass over the
next token and its drafts checks them all (Leviathan et al. 2023; the heads: Gloeckle et al. 2024).
A draft is right when it is the token that is sampled there, by the random number of its
position. So a reply is the same with drafts and without, token for token: a certain draft x passes
with the probability p(x), which is Leviathan's rule for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.backend.capabilities import LEAST_REPEATED, MOST_REPEATED, ChoosingBackend
from nanoeuler.model.transformer import Transformer

TRIAL = 16
"""Passes with all drafts of the heads, which show how many of them pay."""
PERIOD = 256
"""Passes with that many, until there is another trial."""
DEVICE_TRIAL = 8
"""Passes that show whether drafts pay on a device, where a pass takes all or none."""
HOPELESS = 2
"""Passes of such a trial after which it ends if no draft was right."""


class Repeats:
    """A text that grows, and where the last few tokens of each of its places stood last.

    Greedy texts return to their phrases, an answer repeats words of its question, and a summary
    those of its text. `reference_drafts.repeated` is the specification, which searches the text
    anew.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self.tokens: list[int] = []
        self.followers: dict[tuple[int, ...], int] = {}
        """By some tokens in a row, the place behind where they stood last. The end of the text is
        not among them."""
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            for length in range(LEAST_REPEATED, min(MOST_REPEATED, end) + 1):
                self.followers[tuple(self.tokens[end - length :])] = end
            self.tokens.append(token)

    @property
    def repeated(self) -> int:
        """How many of the last tokens stood there before: at least two, at most three, or none."""
        for length in range(min(MOST_REPEATED, len(self.tokens)), LEAST_REPEATED - 1, -1):
            if tuple(self.tokens[-length:]) in self.followers:
                return length
        return 0

    def drafts(self, count: int) -> list[int]:
        """That many tokens as they followed, or none. A place too near goes on from the start."""
        if not (length := self.repeated):
            return []
        start, end = self.followers[tuple(self.tokens[-length:])], len(self.tokens)
        return [self.tokens[start + number % (end - start)] for number in range(count)]


class Drafts(NamedTuple):
    """Guesses of the tokens that follow a row's last one."""

    ids: list[int]
    repeats: bool = False
    """Are they from the text?"""
    given: bool = False
    """Are they no guesses, but a result of the calculator?"""

    @classmethod
    def of_text(cls, text: Repeats, count: int) -> "Drafts":
        """That many, where the text repeats itself; otherwise none."""
        ids = text.drafts(count)
        return cls(ids, repeats=True) if ids else NO_DRAFTS


NO_DRAFTS = Drafts([])


class Taken(NamedTuple):
    """Tokens of one sequence from a pass."""

    ids: list[int]
    """The next tokens, of which the last one is not read yet."""
    drafted: int = 0
    repeats: bool = False
    """Did the drafts come from the text?"""

    @property
    def right(self) -> int:
        """Drafts that were right."""
        return min(len(self.ids) - 1, self.drafted)


class Speculation(ABC):
    """How many drafts the passes of a reply take, and their statistics.

    That is decided by counts and by a cost that the engine states, not by the clock: the
    same replies in the same order take the same passes each time.
    """

    def __init__(self, heads: int, draft_cost: float, most: int = 7):
        """`heads`: those of the model, K. `draft_cost` and `most` drafts of a pass: of its engine,
        see `Backend`."""
        self.draft_cost, self.most = draft_cost, most
        self.passes, self.tokens = 0, 0  # of all sequences
        drafting = min(heads - 1, most)
        self.drafted, self.right = [0] * drafting, [0] * drafting  # by head
        self.repeats, self.right_repeats = 0, 0
        """Passes with drafts from the text, and how many of those drafts were right."""
        self.count = 0  # passes since a trial began, or ended

    @staticmethod
    def of(model: Transformer) -> "Speculation":
        """Speculation on the device or on the host, whichever the model's engine supports."""
        engine = model.backend
        kind = DeviceSpeculation if isinstance(engine, ChoosingBackend) else HostSpeculation
        return kind(model.config.mtp_heads, engine.draft_cost, engine.drafted_tokens - 1)

    def note(self, passes: Sequence[Taken]) -> None:
        """Count a pass, for each sequence, and the tokens that all took."""
        self.passes += len(passes)
        for each in passes:
            self.tokens += len(each.ids)
            if each.repeats:
                self.repeats += 1
                self.right_repeats += each.right
            else:
                for head in range(min(each.drafted, len(self.drafted))):
                    self.drafted[head] += 1
                    self.right[head] += each.right > head
        self.decide(passes)

    @abstractmethod
    def decide(self, passes: Sequence[Taken]) -> None:
        """The drafts of the next passes, after this one."""

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / max(self.passes, 1)

    @property
    def acceptance(self) -> list[float]:
        """For each head, the share of its drafts that were right and followed right ones."""
        return [
            right / max(drafted, 1) for right, drafted in zip(self.right, self.drafted, strict=True)
        ]


class HostSpeculation(Speculation):
    """The host samples: a pass takes any number of drafts."""

    def __init__(self, heads: int, draft_cost: float, most: int = 7):
        super().__init__(heads, draft_cost, most)
        self.heads = len(self.drafted)
        """Drafts that the next pass takes from the heads, for each sequence."""
        self.from_text = 3
        """Those that it takes from a text that repeats: two more after a pass in which all were
        right, otherwise one less."""
        self.before_trial = self.drafted.copy(), self.right.copy()

    def decide(self, passes: Sequence[Taken]) -> None:
        for each in passes:
            if each.repeats:
                self.from_text += 2 if each.right == each.drafted else -1
                self.from_text = min(max(self.from_text, 1), self.most)
        if all(each.repeats for each in passes):
            return  # which tells nothing about the heads
        self.count = (self.count + 1) % (TRIAL + PERIOD)
        if self.count == TRIAL:
            self.heads = self.best(len(passes))
        elif self.count == 0:
            self.heads = len(self.drafted)
            self.before_trial = self.drafted.copy(), self.right.copy()

    def best(self, rows: int) -> int:
        """The drafts of heads that give the most tokens for their cost, by the trial."""
        drafted, right = np.array([self.drafted, self.right]) - self.before_trial
        tokens = 1 + np.append(0, np.cumsum(right / np.maximum(drafted, 1)))
        cost = 1 + self.draft_cost * (rows * np.arange(1, len(tokens) + 1) - 1)
        return int((tokens / cost).argmax())


class DeviceSpeculation(Speculation):
    """Where tokens and drafts lie on a device, which is ahead of the host.

    A pass takes all drafts that there can be, from the text or from the heads, or none: what it is
    must be known before the tokens are that it starts from. It costs time to change between passes
    with drafts and without, so a text must repeat itself in more tokens than elsewhere.
    """

    def __init__(self, heads: int, draft_cost: float, most: int = 7):
        super().__init__(heads, draft_cost, most)
        self.pays = heads > 1
        """Do passes with drafts pay whatever the text?"""
        self.tried = 0  # tokens of these passes

    def wanted(self, texts: Sequence[Repeats], room: int) -> int:
        """Drafts of the next pass, behind these texts, with room for that many tokens."""
        drafts = self.pays or any(text.repeated == MOST_REPEATED for text in texts)
        return self.most if drafts and room > self.most else 0

    def decide(self, passes: Sequence[Taken]) -> None:
        if self.pays and not any(each.drafted for each in passes):
            return  # asked for before the trial, or a prompt's
        rows = len(passes)
        self.count += 1
        self.tried += sum(len(each.ids) for each in passes)
        is_hopeless = self.count == HOPELESS and self.tried == rows * self.count
        if self.pays and (self.count == DEVICE_TRIAL or is_hopeless):
            plain, cost = (1 + self.draft_cost * (rows * T - 1) for T in (1, 1 + self.most))
            self.pays = self.tried * plain > self.count * rows * cost
        elif not self.pays and self.count == PERIOD:
            self.pays = len(self.drafted) > 0
        else:
            return
        self.count, self.tried = 0, 0
