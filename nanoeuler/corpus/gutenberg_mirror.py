"""Fetch one book from a mirror of Project Gutenberg, or from a local folder laid out like one.

Mirrors have a book's plain text as `cache/epub/1342/pg1342.txt`, rebuilt every month so that no
hash can be pinned. Most have the older tree as well: `1/3/4/1342/1342-0.txt` in UTF-8, `-8.txt` in
Latin-1, `.txt` in ASCII. A downloaded file is checked by its content; a good one is kept for ever.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from nanoeuler import log
from nanoeuler.corpus.addresses import resolve, shown
from nanoeuler.corpus.decode import UTF_16_MARKS, decode
from nanoeuler.corpus.download import SourceFile, download
from nanoeuler.corpus.gutenberg import HEADER, LARGEST_BOOK, WEB_PAGE
from nanoeuler.corpus.gutenberg_borders import ENDS, LICENCE_START, START
from nanoeuler.corpus.remote_file import NotThere, Patience, TooLarge
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_bounded

NUMBER = re.compile(r"\be-?(?:book|text)\s*(?:no\.?\s*)?#\s*(\d+)", re.IGNORECASE)
SHORTEST_UNMARKED = (
    1_000  # characters: a shorter text without markers is a server's message, not a book
)


def fetch_book(
    mirror: str, book: int, output: Path, pause: float = 2.0, patience: Patience | None = None
) -> None:
    """Fetch the plain text of `book` to `output`, as it is served, unless a good one is there.

    `pause` is in seconds, between two requests to the mirror. Raises `UserError` when the mirror
    has no good text of the book.
    """
    if output.is_file():
        problem = wrong_with(read_bounded(output, LARGEST_BOOK), book)
        if problem is None:
            log.line("cached", path=output)
            return
        log.line("refetch", f"{output}: {problem}")
    first_problem: UserError | None = None
    for address in addresses(mirror, book):
        source = SourceFile(address, largest=LARGEST_BOOK)
        url = source.url

        def check(path: Path, url: str = url) -> None:
            if problem := wrong_with(read_bounded(path, LARGEST_BOOK), book):
                raise UnfitBook(
                    f"{url}: {problem}; try again later, name another mirror, "
                    f"or take book {book} out of the sources file"
                )

        try:
            download(source, output, pause, patience, check)
            log.line("fetched", url=url, bytes=output.stat().st_size)
            return
        except (NotThere, TooLarge, UnfitBook) as error:
            if isinstance(error, TooLarge):
                error = UnfitBook(
                    f"{url}: more than {LARGEST_BOOK:,} bytes, which is no book; "
                    f"name another mirror, or take book {book} out of the sources file"
                )
            if isinstance(error, UnfitBook):
                first_problem = first_problem or error
    raise first_problem or UserError(
        f"{shown(mirror)}: has no plain text of book {book}; correct its number, "
        "or name another mirror in the sources file"
    )


class UnfitBook(UserError):
    """The mirror sent something other than the plain text of the book."""


def addresses(mirror: str, book: int) -> Iterator[str]:
    """Yield where a mirror may have the text of `book`, best first.

    For a local folder these are only the files that exist.
    """
    digits = "/".join(str(book)[:-1]) or "0"
    paths = [
        f"cache/epub/{book}/pg{book}.txt",
        *(f"{digits}/{book}/{book}{ending}.txt" for ending in ("-0", "-8", "")),
    ]
    root = resolve(mirror)
    if isinstance(root, Path) and not root.is_dir():
        raise UserError(f"{mirror}: no such folder; correct gutenberg.mirror in the sources file")
    for path in paths:
        if isinstance(root, str):
            yield f"{root.rstrip('/')}/{path}"
        elif (root / path).is_file():
            yield str(root / path)


def wrong_with(raw: bytes, book: int) -> str | None:
    """Say why `raw` is not the whole plain text of `book`, or return None if it is."""
    beginning = raw[:65_536]
    controls = sum(byte < 32 and byte not in b"\t\n\v\f\r\x1a\x1b" for byte in beginning)
    if controls > len(beginning) // 100 and not raw.startswith(UTF_16_MARKS):
        return "not plain text"
    text = decode(raw).text
    if not text.strip():
        return "an empty file"
    if WEB_PAGE.match(text):
        return "a web page instead of a book, mostly a sign that the server blocks programs"
    header = text[:HEADER]
    numbers = {int(number) for number in NUMBER.findall(header[:5_000])}
    if numbers and book not in numbers:
        return f"the text of book {min(numbers)} instead of {book}"
    start = START.search(header)
    if start and not any(end.search(text, start.end()) for end in (*ENDS, LICENCE_START)):
        return "a truncated book: it has a start marker but no end"
    if not start and len(text) < SHORTEST_UNMARKED:
        return f"no book but a text of {len(text)} characters: {' '.join(text.split())[:80]!r}"
    return None
