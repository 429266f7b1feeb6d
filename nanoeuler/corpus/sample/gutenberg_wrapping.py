"""Headers, markers, credits and licences like those of Project Gutenberg's files over the years."""

import unicodedata
from dataclasses import dataclass

from nanoeuler.shipped import tables_beside

TEXT = tables_beside(__file__)
STYLES: dict[str, dict[str, str]] = TEXT["styles"]


@dataclass(frozen=True)
class Wrapping:
    """A style of header and footer, an encoding, line ends, and a path on the mirror.

    `path` None means that of today's files, cache/epub/{id}/pg{id}.txt. Otherwise it is the suffix
    of the name in the older tree: -0 (UTF-8), -8 (Latin-1) or nothing (ASCII).
    """

    style: str
    encoding: str
    newline: str
    path: str | None = None

    def location(self, id: int) -> str:
        """Return the path of the file on the mirror."""
        if self.path is None:
            return f"cache/epub/{id}/pg{id}.txt"
        return f"{'/'.join(str(id)[:-1])}/{id}/{id}{self.path}.txt"

    def wrap(self, text: str, title: str, author: str, id: int) -> bytes:
        """Put header and footer around the book `text`, and encode it."""
        words = {
            "title": title,
            "author": author,
            "id": str(id),
            "TITLE": title.upper(),
            "producer": TEXT["producers"][id % len(TEXT["producers"])],
        }
        words |= {name: part.format(**words) for name, part in TEXT["parts"].items()}
        before, after = (STYLES[self.style][end].format(**words) for end in ("before", "after"))
        whole = before + text + after
        if self.encoding == "ascii":
            decomposed = unicodedata.normalize("NFKD", whole)
            whole = "".join(letter for letter in decomposed if letter.isascii())
        return whole.replace("\n", self.newline).encode(self.encoding)
