"""Text of one's own: files, folders and globs that `corpus.sources` names by their paths.

A text may be too small to teach a model that begins with random weights: then there is a warning.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.corpus.sources import is_named
from nanoeuler.corpus.sources.source import Config, Option, Place, Text
from nanoeuler.errors import UserError, brief
from nanoeuler.log import size

if TYPE_CHECKING:
    from nanoeuler.corpus.text_files import Reading


class OwnText(Text):
    """Text of one's own, which is not in the sources file and not fetched."""

    name, title = "own_text", "own text"
    kind, repetitions = "own_text", ("in your own text, each path for itself", "none")
    option = Option(
        "--own", "PATH", "own text files, folders or globs, where corpus.sources names none", str
    )

    def entries_in(self, named: Any) -> list[Any]:
        """Those of `corpus.sources` that name text of one's own."""
        return [each for each in named if not is_named(each)]

    def is_taken(self, config: Config) -> bool:
        return bool(self.entries_in(config["corpus"].get("sources", ())))

    def paths(self, config: Config) -> list[tuple[Path, "Reading"]]:
        """The files, and how those of their entry are read."""
        from nanoeuler.corpus.own_text import Named, find_files

        named = map(Named.of, self.entries_in(config["corpus"]["sources"]))
        return [(file, each.reading) for each in named for file in find_files(each.path)]

    def check(self, config: Config, place: Place) -> None:
        """Raise `UserError` for a path without text, or an encoding that Python does not know."""
        from nanoeuler.corpus.own_text import Named, find_files

        sources = config["corpus"]["sources"]
        for entry in self.entries_in(sources):
            key = ("corpus", "sources", sources.index(entry))
            named = Named.of(entry)
            try:
                find_files(named.path)
                "".encode(named.reading.encoding or "utf-8")
            except UserError as error:
                raise UserError(f"{place.where(key)}: {error}") from error
            except LookupError:
                place.refuse(
                    key,
                    f"names the encoding {brief(str(named.reading.encoding))}, which Python does "
                    "not know; write a name like utf-8, cp1251 or gb18030",
                )


OWN_TEXT = OwnText()


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
