"""Warnings about texts too small to teach a model that begins with random weights."""

from collections.abc import Mapping
from typing import Any

from nanoeuler.corpus.sources import is_named
from nanoeuler.log import size

GO_ON = "nanoeuler train TEXT --from models/stories"
TEACHES = (
    (100_000, "letters and short words: many words that the model writes will not exist"),
    (1_000_000, "its words and its tone: sentences will seldom make sense"),
)
"""For texts below so many bytes; docs/own-text.md shows pages of such models."""


def warning(text_bytes: float) -> str | None:
    """A warning of what a small text teaches and what would help; None for enough text."""
    taught = next((words for limit, words in TEACHES if text_bytes < limit), None)
    if taught is None:
        return None
    return (
        f"{size(text_bytes)} of text teach {taught}. What helps is more text, or a model that has "
        f"read some before: {GO_ON}"
    )


def warning_for(sources: Mapping[str, Any], start: str | None) -> str | None:
    """The warning for the sources of a corpus's manifest; None where the run goes on from a model
    or has no text of one's own.
    """
    if start or all(map(is_named, sources)):
        return None
    return warning(sum(source["train"]["bytes"] for source in sources.values()))
