"""Choose web pages by label, score and length, each text once, up to a budget of bytes."""

from collections import Counter
from typing import NamedTuple

from nanoeuler.storage.section import Section, key, section

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


class Page(NamedTuple):
    """A page without its text. A label that the file lacks has the value that its filter wants."""

    language: str | None
    language_score: float | None
    score: float | None
    characters: int
    size: int  # bytes
    sha256: bytes
    blank: bool


@section
class Filters(Section):
    """Which pages are kept."""

    max_bytes_per_shard: int = key(
        "UTF-8 bytes of text to take from a shard; only the parts of the file that hold them are "
        "downloaded",
        default=1_000_000_000,
        ge=1,
    )
    min_score: int = key("lowest educational score (0 to 5) of a page", default=3, ge=0, le=5)
    language: str = key("language of a page as the data set labels it", default="en", min_length=2)
    min_language_score: float = key("lowest certainty of that label", default=0.65, ge=0, le=1)
    min_characters: int = key("length of the shortest page", default=200, ge=1)
    max_characters: int = key("length of the longest page", default=100_000, ge=1)


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
