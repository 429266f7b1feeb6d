"""The demo's invented world, as the tests of its texts and files read it."""

from pathlib import Path

from nanoeuler.corpus.sample.books import BOOKS
from nanoeuler.corpus.sample.world import Sample

DEFAULTS = Sample()


def read_book(sample: Path, id: int) -> str:
    (book,) = (book for book in BOOKS if book.id == id)
    return (
        (sample / "gutenberg" / book.wrapping.location(id))
        .read_bytes()
        .decode(book.wrapping.encoding)
    )
