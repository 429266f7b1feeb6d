"""Which web pages are kept: by label, score and length, each text once, up to a budget of bytes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.corpus.batches import Batch

REMEDIES = {
    "no text": None,
    "language": "language",
    "language score": "min_language_score",
    "score": "min_score",
    "too short": "min_characters",
    "too long": "max_characters",
    "duplicate": None,
    "beyond the budget": "max_bytes_per_shard",
}
"""Why a page is dropped, in the order in which it is looked at: and the key of corpus.fineweb that says so."""


BLANK = b" \t\n\r"


class Page(NamedTuple):
    """What is known of a page without its text. A label that the file does not have is the filter's own: it drops nothing."""

    language: str | None
    language_score: float | None
    score: float | None
    characters: int
    bytes: int
    sha256: bytes
    blank: bool


def measure(texts: Batch) -> tuple[list[int], list[bool]]:
    """Characters of each text, and whether it is blank: just spaces, tabs and line ends, or nothing."""
    following = np.flatnonzero(
        texts.text.view(np.int8) < -64
    )  # bytes 0x80 to 0xBF: those of a character but its first
    characters = (
        texts.sizes
        - np.searchsorted(following, texts.stops)
        + np.searchsorted(following, texts.starts)
    )
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
        return cls(
            **{field.name: section[field.name] for field in fields(cls) if field.name in section}
        )


class Selection:
    """Decides page by page, in their order, and remembers what became of them."""

    def __init__(self, filters: Filters):
        self.filters = filters
        self.kept = 0
        self.bytes = 0
        self.dropped: Counter[str] = Counter()
        self.full = False
        self.hashes: set[bytes] = set()

    def keep(self, page: Page) -> bool:
        """Whether `page` is kept. The first page that the budget has no room for ends the selection: from then on it is `full`."""
        reason = self.reason_to_drop(page)
        if reason:
            self.dropped[reason] += 1
            self.full = reason == "beyond the budget"
            return False
        self.hashes.add(page.sha256)
        self.kept += 1
        self.bytes += page.bytes
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
        if self.bytes + page.bytes > filters.max_bytes_per_shard:
            return "beyond the budget"
        return None

    def why_empty(self) -> str:
        """What dropped all the pages, as the rest of a sentence that begins with the file."""
        if not self.dropped:
            return "has no rows; take another shard"
        counts = ", ".join(
            f"{reason} {self.dropped[reason]:,}" for reason in REMEDIES if self.dropped[reason]
        )
        key = REMEDIES[max(self.dropped, key=self.dropped.__getitem__)]
        remedy = f"loosen corpus.fineweb.{key}" if key else "take another shard"
        return f"no page passes the filters; of {self.dropped.total():,} rows they drop: {counts}; {remedy}"
