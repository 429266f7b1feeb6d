"""The books of the isles: their subjects, their chapters, and their Gutenberg headers."""

import csv
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoeuler.corpus.sample.paragraphs import Storyteller
from nanoeuler.corpus.sample.world import Dice, World
from nanoeuler.shipped import tables_beside

WRAPPING = tables_beside(str(Path(__file__).with_name("gutenberg_wrapping.toml")))
STYLES: dict[str, dict[str, str]] = WRAPPING["styles"]


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
            "producer": WRAPPING["producers"][id % len(WRAPPING["producers"])],
        }
        words |= {name: part.format(**words) for name, part in WRAPPING["parts"].items()}
        before, after = (STYLES[self.style][end].format(**words) for end in ("before", "after"))
        whole = before + text + after
        if self.encoding == "ascii":
            decomposed = unicodedata.normalize("NFKD", whole)
            whole = "".join(letter for letter in decomposed if letter.isascii())
        return whole.replace("\n", self.newline).encode(self.encoding)


LINE = 72  # characters

Scene = Callable[[Storyteller], str]

SCENES: dict[str, Scene] = {
    "about": lambda teller: teller.about(teller.people.next()),
    "portrait": lambda teller: teller.portrait(teller.people.next()),
    "boat": lambda teller: teller.boat(teller.boats.next()),
    "talk": lambda teller: teller.dialogue(teller.people.next()),
    "boat talk": lambda teller: teller.dialogue(teller.boats.next()),
    "gathering": lambda teller: teller.gathering(),
    "village": lambda teller: teller.village(teller.villages.next()),
    "song": lambda teller: teller.song(teller.people.next()),
    "riddle": lambda teller: teller.riddle(teller.people.next()),
    "quiz": lambda teller: teller.quiz(),
    "introduction": lambda teller: teller.introduction(teller.people.next()),
    "ledger": lambda teller: teller.ledger(teller.people.several(4)),
    "boat ledger": lambda teller: teller.ledger(teller.boats.several(4)),
    "letter": lambda teller: teller.letter(*teller.people.several(2)),
    "errand": lambda teller: teller.errand(teller.people.next()),
}

TEXT = tables_beside(__file__)


@dataclass(frozen=True)
class Book:
    """A book. A later `edition` has the same text with a preface, under a number of its own."""

    id: int
    title: str
    author: str
    style: str
    wrapping: Wrapping
    edition: int = 1


def read_books(table: Path) -> Iterator[Book]:
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            path = None if row["path"] == "pg" else row["path"]
            newline = {"LF": "\n", "CRLF": "\r\n"}[row["newline"]]
            wrapping = Wrapping(row["wrapping"], row["encoding"], newline, path)
            id, edition = int(row["id"]), int(row["edition"])
            yield Book(id, row["title"], row["author"], row["style"], wrapping, edition)


BOOKS = tuple(read_books(Path(__file__).with_suffix(".csv")))


def write_book(book: Book, world: World, seed: int, paragraphs: int) -> bytes:
    """Return the file of one book, as a mirror would serve it."""
    text = book_text(book, world, seed, paragraphs)
    return book.wrapping.wrap(text, book.title, book.author, book.id)


def book_text(book: Book, world: World, seed: int, paragraphs: int) -> str:
    """Write the title page, a preface for later editions, and the chapters."""
    dice = Dice(seed, "book", book.title)  # without the edition, whose text is the same
    teller = Storyteller(dice, world)
    parts = [book.title.upper(), f"by\n\n{book.author}"]
    if book.edition > 1:
        parts.append(
            "PREFACE TO THE SECOND EDITION\n\nA few errors of the printer have been mended. "
            "Nothing else was changed."
        )
    parts.append(dice.pick(TEXT["openings"]))
    scenes = TEXT["styles"][book.style]
    chapters = max(2, paragraphs // 16)
    rounds = -(-chapters // len(TEXT["chapters"]))
    titles = [title for _ in range(rounds) for title in dice.shuffled(TEXT["chapters"])]
    for number in range(chapters):
        written = [
            teller.arrival(),
            *(SCENES[dice.pick(scenes)](teller) for _ in range(paragraphs // chapters)),
        ]
        parts.append(
            f"CHAPTER {number + 1}\n\n{titles[number]}\n\n\n"
            + "\n\n".join(map(set_in_lines, written))
        )
    return "\n\n\n\n".join(parts) + "\n"


def set_in_lines(paragraph: str) -> str:
    """Break a paragraph into lines of at most `LINE` characters, keeping its own line ends."""
    lines = []
    for line in paragraph.split("\n"):
        words = line.split(" ")
        lines.append(words[0])
        for word in words[1:]:
            if len(lines[-1]) + 1 + len(word) <= LINE:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
    return "\n".join(lines)
