"""Choose web pages by label, score and length, each text once, up to a budget of bytes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.corpus.batches import Batch

NOT_UTF8 = "not UTF-8"
REMEDIES = {
    NOT_UTF8: None,
    "no text": None,
    "language": "language",
    "language score": "min_language_score",
    "score": "min_score",
    "too short": "min_characters",
    "too long": "max_characters",
    "duplicate": None,
    "beyond the budget": "max_bytes_per_shard",
}
"""Reasons to drop a page, in the order of the checks → the key of corpus.fineweb that sets them."""

BLANK = b" \t\n\r"


class Page(NamedTuple):
    """A page without its text. A label that the file lacks has the value that its filter wants."""

    language: str | None
    language_score: float | None
    score: float | None
    characters: int
    size: int  # bytes
    sha256: bytes
    blank: bool


def measure(texts: Batch) -> tuple[list[int], list[bool]]:
    """Return the characters of each text, and whether it is blank.

    A blank text has only spaces, tabs and line ends, or nothing.
    """
    # bytes 0x80 to 0xBF: every byte of a character but its first
    continuations = np.flatnonzero(texts.text.view(np.int8) < -64)
    before_start = np.searchsorted(continuations, texts.starts)
    before_stop = np.searchsorted(continuations, texts.stops)
    characters = texts.sizes - before_stop + before_start
    return characters.tolist(), [
        not document[:1].tobytes().strip(BLANK) and not document.tobytes().strip(BLANK)
        for document in texts.documents()
    ]


@dataclass(frozen=True)
class Filters:
    """The keys of corpus.fineweb."""

    max_bytes_per_shard: int = 1_000_000_000
    min_score: float = 3
    language: str = "en"
    min_language_score: float = 0.65
    min_characters: int = 200
    max_characters: int = 100_000

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> "Filters":
        names = [field.name for field in fields(cls)]
        return cls(**{name: section[name] for name in names if name in section})


class Selection:
    """Decides about pages in their order, and counts the kept and the dropped ones."""

    def __init__(self, filters: Filters):
        self.filters = filters
        self.kept = 0
        self.bytes = 0
        self.dropped: Counter[str] = Counter()
        self.full = False
        self.hashes: set[bytes] = set()

    def keep(self, page: Page) -> bool:
        """Return whether `page` is kept.

        The first page that the budget has no room for ends the selection: then it is `full`.
        """
        reason = self.reason_to_drop(page)
        if reason:
            self.dropped[reason] += 1
            self.full = reason == "beyond the budget"
            return False
        self.hashes.add(page.sha256)
        self.kept += 1
        self.bytes += page.size
        return True

    def reason_to_drop(self, page: Page) -> str | None:
        filters = self.filters
        if page.blank:
            return "no text"
        if page.language != filters.language:
            return "language"
        if page.language_score is None or page.language_score < filters.min_language_score:
            return "language score"
        if page.score is None or page.score < filters.min_score:
            return "score"
        if page.characters < filters.min_characters:
            return "too short"
        if page.characters > filters.max_characters:
            return "too long"
        if page.sha256 in self.hashes:
            return "duplicate"
        if self.bytes + page.size > filters.max_bytes_per_shard:
            return "beyond the budget"
        return None

    def why_empty(self) -> str:
        """Say what dropped all pages, as the rest of a sentence that begins with the file."""
        if not self.dropped:
            return "has no rows; take another shard"
        counts = ", ".join(
            f"{reason} {self.dropped[reason]:,}" for reason in REMEDIES if self.dropped[reason]
        )
        key = REMEDIES[max(self.dropped, key=self.dropped.__getitem__)]
        remedy = f"loosen corpus.fineweb.{key}" if key else "take another shard"
        rows = f"{self.dropped.total():,} rows"
        return f"no page passes the filters; of {rows} they drop: {counts}; {remedy}"
