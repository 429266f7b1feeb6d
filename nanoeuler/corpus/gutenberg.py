"""Cut a Project Gutenberg file down to its book, without header, licence, credits and notes.

A file is a header, a start marker, credits, the book, an end marker and the licence. The markers
changed over the years. Older files have just the end of their small print and a last line "End of
the Project Gutenberg Etext of …", and some have neither: then the text is kept unchanged, and the
record says so. Only what is recognised is cut.

    from nanoeuler.corpus.gutenberg import clean
    book = clean(Path("pg1342.txt").read_bytes())
    print(book.title, book.text[:200])
"""

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nanoeuler.corpus.decode import decode
from nanoeuler.corpus.gutenberg_credits import strip_credits, trim
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_write, write_json

HEADER = 60_000  # characters: no header, small print included, is longer
LICENCE = 60_000  # characters: no licence is longer

START = re.compile(
    r"^[^\S\n]*\*{3,}\s*START OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
    # up to the closing stars, across two line ends at most, or else the line
    r"(?:[^*\n]*(?:\n[^*\n]*){0,2}?\*{3}|[^\n]*)",
    re.MULTILINE | re.IGNORECASE,
)
SMALL_PRINT_END = re.compile(
    r"^[^\S\n]*\*+\s*END\s*\*?\s*THE SMALL PRINT![^\n]*", re.MULTILINE | re.IGNORECASE
)
END = re.compile(
    r"^[^\S\n]*\*{3,}\s*END OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)[^\n]*",
    re.MULTILINE | re.IGNORECASE,
)
END_LINE = re.compile(
    r"^(?:[^\w\n]|_){0,20}(?:this is the )?end of (?:the |this )?project gutenberg\b[^\n]*",
    re.MULTILINE | re.IGNORECASE,
)
LICENCE_START = re.compile(
    r"^[^\S\n]*\*{3,}\s*START(?:: FULL LICENSE|\s*\*+\s*THE SMALL PRINT!)[^\n]*",
    re.MULTILINE | re.IGNORECASE,
)
COPYRIGHTED = re.compile(
    r"this is a copyrighted project gutenberg|the copyrighted project gutenberg|"
    r"small print! for copyright protected|^copyright status:\s*copyrighted",
    re.MULTILINE | re.IGNORECASE,
)
WEB_PAGE = re.compile(
    # atomic, as there are exponentially many ways to take several comments for one
    r"\s*(?:<\?xml[^>]*>\s*)?(?>(?:(?><!--.*?-->)\s*)*)<(?:!doctype\s+html|html)\b",
    re.IGNORECASE | re.DOTALL,
)
TITLE = re.compile(r"^Title:[^\S\n]*(?:Title:)?[^\S\n]*(\S[^\n]*)", re.MULTILINE)
AUTHOR = re.compile(r"^Author:[^\S\n]*(\S[^\n]*)", re.MULTILINE)
OLD_TITLE = re.compile(
    r"^(?:[^\w\n]|_){0,20}(?:the )?project gutenberg(?:['’]s)? e-?(?:text|book)(?: of)?:? "
    r"([^\n*]{1,300}?)(?:,? by ([^\n*]{1,300}?))?[\s*]*$",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class CleanedBook:
    """The book of a Gutenberg file, with its title, author, encoding and what was removed.

    `kept` is False, with a `reason` and an empty `text`, for a book that must not be used.
    `start_marker` and `end_marker` are the lines that were found, or None. `removed` holds the
    credits, notes and notices that stood between them.
    """

    text: str
    kept: bool
    reason: str | None
    title: str
    author: str
    encoding: str
    unreadable: int
    start_marker: str | None
    end_marker: str | None
    removed: tuple[str, ...]


def clean(raw: bytes) -> CleanedBook:
    """Return the book in `raw`, a Project Gutenberg file as it was served.

    Its text has "\\n" line ends. Raises `UserError` when `raw` is a web page (mostly a server's
    refusal) instead of a book.
    """
    decoded = decode(raw)
    whole = decoded.text
    if WEB_PAGE.match(whole):
        raise UserError("a web page instead of a plain-text book")
    start, start_marker = find_start(whole)
    end, end_marker = find_end(whole, start)
    header = whole[:start]
    title, author = title_and_author(header or whole[:HEADER])
    text, removed = strip_credits(trim(whole[start:end]))
    reason = None
    if COPYRIGHTED.search(whole, 0, HEADER) or COPYRIGHTED.search(whole, end):
        reason = "copyrighted: not in the public domain"
    elif not text:
        reason = "no text between the markers"
    return CleanedBook(
        text="" if reason else text,
        kept=reason is None,
        reason=reason,
        title=title,
        author=author,
        encoding=decoded.encoding,
        unreadable=decoded.unreadable,
        start_marker=start_marker,
        end_marker=end_marker,
        removed=tuple(removed),
    )


def strip_wrapping(text: str) -> list[str]:
    """Return the books in `text` without headers, credits and licences of Project Gutenberg.

    Several books may follow one another in `text`. Text without markers is returned unchanged.
    """
    borders = [end.end() for end in END.finditer(text) if START.search(text, end.end())]
    return [strip_one(text[start:end]) for start, end in pairwise([0, *borders, len(text)])]


def strip_one(whole: str) -> str:
    start, start_marker = find_start(whole)
    end, end_marker = find_end(whole, start)
    if start_marker is None and end_marker is None:
        return whole
    text, _ = strip_credits(trim(whole[start:end]))
    return text


def find_start(whole: str) -> tuple[int, str | None]:
    """Return where the book starts, and the marker before it.

    A file with both kinds of markers has the small print after the newer one.
    """
    start, marker = 0, None
    for pattern in (START, SMALL_PRINT_END):
        found = pattern.search(whole, start, HEADER)
        if found and not END.search(whole, start, found.start()):
            start, marker = found.end(), " ".join(found.group().split())
    return start, marker


def find_end(whole: str, start: int) -> tuple[int, str | None]:
    """Return where the book ends, and the marker after it: the last one of the newest kind."""
    earliest = max(start, len(whole) - LICENCE)
    for pattern in (END, END_LINE, LICENCE_START):
        if found := list(pattern.finditer(whole, earliest)):
            return found[-1].start(), " ".join(found[-1].group().split())
    return len(whole), None


def title_and_author(header: str) -> tuple[str, str]:
    """Read title and author from the header's fields, or else from the first line of old files.

    That line is like "The Project Gutenberg Etext of Persuasion by Jane Austen".
    """
    old = OLD_TITLE.search(header)
    old_title, old_author = old.groups() if old else ("", "")
    title, author = TITLE.search(header), AUTHOR.search(header)
    return (
        (title.group(1) if title else old_title).strip(),
        (author.group(1) if author else old_author or "").strip(),
    )


def clean_file(
    input: str | Path,
    output: str | Path,
    record: str | Path,
    id: int,
    title: str = "",
    author: str = "",
) -> CleanedBook:
    """Write the text of a downloaded book to `output` (UTF-8), and its record (JSON) last.

    `title` and `author`, where given, replace those of the file's header. For a book that must not
    be used, `output` is empty.
    """
    try:
        raw = Path(input).read_bytes()
    except OSError as error:
        raise UserError(
            f"{input}: cannot be read ({error.strerror}); fetch the book first: "
            f"nanoeuler gutenberg fetch --id {id}"
        ) from error
    try:
        book = clean(raw)
    except UserError as error:
        raise UserError(
            f"{input}: {error}; delete it and fetch it again: nanoeuler gutenberg fetch --id {id}"
        ) from error
    text = book.text.encode("utf-8")
    with atomic_write(output, "wb") as file:
        file.write(text)
    write_json(
        record,
        {
            "version": 1,
            "id": id,
            "title": title or book.title,
            "author": author or book.author,
            "kept": book.kept,
            "reason": book.reason,
            "markers": {"start": book.start_marker, "end": book.end_marker},
            "encoding": book.encoding,
            "unreadable": book.unreadable,
            "removed": [" ".join(piece.split())[:120] for piece in book.removed],
            "bytes_in": len(raw),
            "bytes_out": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
        },
    )
    return book
