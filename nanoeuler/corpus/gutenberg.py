"""Cut a Project Gutenberg file down to its book, without header, licence, credits and notes.

A file is a header, a start marker, credits, the book, an end marker and the licence. The markers
changed over the years. Older files have just the end of their small print and a last line "End of
the Project Gutenberg Etext of …", and some have neither: then the text is kept unchanged, and the
record says so. Only what is recognised is cut. `join_lines` joins the lines of a book's prose, as
where they end was a typesetter's choice, not the author's.

    from nanoeuler.corpus.gutenberg import clean
    book = clean(Path("pg1342.txt").read_bytes())
    print(book.title, book.text[:200])
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from nanoeuler.corpus.decode import decode
from nanoeuler.corpus.gutenberg_borders import PARAGRAPH, TITLE, Cut, find_cuts
from nanoeuler.corpus.gutenberg_credits import strip_credits, trim
from nanoeuler.errors import UserError
from nanoeuler.storage.files import atomic_write, read_bounded, write_json

HEADER = 60_000  # characters: no header, small print included, is longer
LARGEST_BOOK = 50_000_000  # bytes: ten times the Bible

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
AUTHOR = re.compile(r"^Author:[^\S\n]*+(\S[^\n]*)", re.MULTILINE)
OLD_TITLE = re.compile(
    r"^(?:[^\w\n]|_){0,20}+(?:the )?project gutenberg(?:['’]s)? e-?(?:text|book)(?: of)?:? "
    r"([^\n*]{1,600}+)",
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
    cuts = find_cuts(whole)
    headers = [cut for cut in cuts if cut.header]
    licences = [cut for cut in cuts if not cut.header]
    title, author = title_and_author(whole[: headers[0].end if headers else HEADER])
    parts, removed = [], []
    for part in between(whole, cuts):
        if part.after_header or part.before_licence or not cuts:
            text, credits = strip_credits(trim(part.text))
            removed += credits
        else:
            text = trim(part.text)
        parts.append(text)
    text = "\n\n".join(filter(None, parts))
    reason = None
    behind = licences[-1].start if licences else len(whole)
    if COPYRIGHTED.search(whole, 0, HEADER) or COPYRIGHTED.search(whole, behind):
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
        start_marker=headers[-1].marker if headers else None,
        end_marker=licences[-1].marker if licences else None,
        removed=tuple(removed),
    )


class Part(NamedTuple):
    """A part of a text, and whether a book's header precedes it, and a licence follows it."""

    text: str
    after_header: bool
    before_licence: bool


def between(whole: str, cuts: Sequence[Cut]) -> list[Part]:
    """Return the parts of `whole` that are not cut, without those that are blank."""
    edges = [Cut(0, 0, False, ""), *cuts, Cut(len(whole), len(whole), True, "")]
    return [
        Part(whole[before.end : after.start], before.header, not after.header)
        for before, after in pairwise(edges)
        if whole[before.end : after.start].strip()
    ]


def strip_wrapping(text: str) -> list[str]:
    """Return the texts between the headers and licences of Project Gutenberg in `text`.

    Several books may follow one another, and texts of one's own may stand beside them. Books lose
    their credits, too. Without headers and licences `text` is returned unchanged.
    """
    cuts = find_cuts(text)
    if not cuts:
        return [text]
    return [
        strip_credits(trim(part.text), part.after_header, part.before_licence)[0]
        if part.after_header or part.before_licence
        else part.text
        for part in between(text, cuts)
    ]


def title_and_author(header: str) -> tuple[str, str]:
    """Read title and author from the header's fields, or else from the first line of old files.

    That line is like "The Project Gutenberg Etext of Persuasion by Jane Austen".
    """
    old = OLD_TITLE.search(header)
    line = old.group(1).strip() if old else ""
    old_title, _, old_author = re.sub(",? by ", "\n", line, count=1, flags=re.I).partition("\n")
    title, author = TITLE.search(header), AUTHOR.search(header)
    return (
        (title.group(1) if title else old_title).strip(),
        (author.group(1) if author else old_author).strip(),
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
        raw = read_bounded(input, LARGEST_BOOK)
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


NARROWEST = 55  # characters: narrower lines are verse throughout, or set in columns
SLACK = 4  # characters by which a line may be shorter than it could be
FULL = 0.9  # share of the line ends of a paragraph at which the next word would not have fitted
RAGGED = 0.65  # of the width, which each line of a ragged paragraph but the last one has
LOWER = 0.7  # share of its lines within a sentence that begin in lower case
SENTENCE_END = re.compile(r"[.!?][\"'”’)_]*\s*$")
INDENTED = re.compile(r"^[^\S\n]", re.MULTILINE)
TABLE = re.compile(r"\S[^\S\n]{3,}\S|\||\t|[._]{5,}")
ITEM = re.compile(r"^(?:[-*•]|\(?\d{1,3}[.)]|\(?[ivxlc]{1,5}[.)])[^\S\n]", re.MULTILINE)


def join_lines(text: str) -> str:
    """Return `text` with each paragraph of prose on one line.

    A paragraph is prose that was set to a width if at nearly every line end the next word would not
    have fitted; or, where somebody typed it with a ragged margin, if its lines are nearly as wide
    and go on in lower case. Verse, tables, lists, letters' addresses and headings break earlier,
    are indented, or begin their lines with capitals.
    """
    width = find_width(text)
    if width < NARROWEST:
        return text
    return PARAGRAPH.sub(lambda match: join(match.group(), width), text)


def find_width(text: str) -> int:
    """The width to which most lines of paragraphs were set: 19 of 20 are no longer."""
    lengths = sorted(
        len(line)
        for paragraph in PARAGRAPH.finditer(text)
        for line in paragraph.group().split("\n")[:-1]
        if line[:1].strip()
    )
    return lengths[len(lengths) * 19 // 20] if lengths else 0


def join(paragraph: str, width: int) -> str:
    lines = paragraph.split("\n")
    if len(lines) < 2 or INDENTED.search(paragraph) or TABLE.search(paragraph):
        return paragraph
    if 2 * len(ITEM.findall(paragraph)) > len(lines):
        return paragraph
    breaks = [
        len(line.rstrip()) + 1 + len(following.split(None, 1)[0]) > width - SLACK
        for line, following in pairwise(lines)
    ]
    if sum(breaks) < FULL * len(breaks) and not is_ragged_prose(lines, width):
        return paragraph
    parts = [lines[0].rstrip()]
    for line in lines[1:]:
        # a dash or hyphen at the end of a line has no space behind it
        glued = re.search(r"\w-$|[^\s-]--$|\S—$", parts[-1]) is not None
        parts.append(("" if glued else " ") + line.rstrip())
    return "".join(parts)


def is_ragged_prose(lines: list[str], width: int) -> bool:
    if min(len(line.rstrip()) for line in lines[:-1]) < RAGGED * width:
        return False
    within = [
        following.lstrip("\"'“‘_(")[:1]
        for line, following in pairwise(lines)
        if not SENTENCE_END.search(line)
    ]
    return bool(within) and sum(map(str.islower, within)) >= LOWER * len(within)
