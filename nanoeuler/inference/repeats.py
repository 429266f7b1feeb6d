"""Drafts from a text itself: what followed its last tokens when they stood there before.

Greedy texts return to their phrases, an answer repeats words of its question, and a summary those
of its text. `ReferenceBackend.repeated` is the specification, which searches the text anew.
"""

from collections.abc import Iterable

from nanoeuler.backend.capabilities import LEAST_REPEATED, MOST_REPEATED


class Repeats:
    """A text that grows, and where the last few tokens of each of its places stood last."""

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
