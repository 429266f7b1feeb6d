"""Read the documents of one text file: compressed or not, in one of many encodings, of any size.

A file is a document. Where `<|endoftext|>` stands alone on a line, or a separator that the
configuration names, another begins. In .jsonl and .parquet each record's `text` is one. A file of
more than `PIECE` bytes is read in pieces that end with a paragraph (or else as characters.py says),
each a document, so that a file of any size fits in memory. Header and licence of Project Gutenberg
are left out where they are recognised.
"""

import codecs
import contextlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler import log
from nanoeuler.corpus.characters import cut
from nanoeuler.corpus.decode import UTF_16_MARKS, decode, is_broken_utf_8, recognise
from nanoeuler.corpus.gutenberg import strip_wrapping
from nanoeuler.corpus.json_records import parse_json_records
from nanoeuler.corpus.packed_files import BLOCK, PACKED, UnfitText, Unpacked
from nanoeuler.errors import UserError

TEXTS = (".txt", ".md", ".markdown", ".rst")
JSON_LINES, PARQUET = RECORDS = (".jsonl", ".parquet")
PIECE = 16_000_000  # bytes
JUDGED = 100  # records
END_OF_TEXT = "<|endoftext|>"
NAME_IT = "name its encoding: `train --encoding NAME`, or corpus.sources: {path: …, encoding: …}"
BLANK = re.compile("[\\s\ufeff\0]*")


@dataclass(frozen=True)
class Reading:
    """How the files of a source are read: in which encoding, and where documents part.

    Without an encoding it is recognised; without a separator it is `END_OF_TEXT`.
    """

    encoding: str | None = None
    separator: str | None = None


USUAL = Reading()


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read, in lower case: that of what is packed in it."""
    name = file.name.lower()
    packed = next((suffix for suffix in PACKED if name.endswith(suffix)), "")
    return Path(name.removesuffix(packed)).suffix


def is_text_name(file: Path) -> bool:
    return kind_of(file) in TEXTS + RECORDS


def read_documents(file: Path, reading: Reading = USUAL, aloud: bool = False) -> Iterator[str]:
    """Yield the documents of `file`, and the pieces of large ones; none if it is blank.

    Raises `UnfitText` if it cannot be read as text. With `aloud`, an encoding that had to be
    recognised and parts that were left out are logged.
    """
    return (text for _, text in read_parts(file, reading, aloud))


def read_parts(file: Path, reading: Reading, aloud: bool) -> Iterator[tuple[bool, str]]:
    """Do the same, and say of each text whether it continues the document before."""
    if kind_of(file) in RECORDS:
        yield from ((False, text) for text in read_records(file, records_of(file), aloud))
        return
    separator = re.escape((reading.separator or END_OF_TEXT).strip())
    border = re.compile(rf"^[^\S\n]*+{separator}[^\S\n]*+$", re.MULTILINE)
    left_out = 0
    for number, piece in enumerate(read_pieces(file, reading)):
        decoded = decode(piece.text)
        guessed = decoded.encoding if decoded.encoding != "utf-8" else piece.encoding
        if aloud and not number and not reading.encoding and guessed not in ("utf-8", "utf-16"):
            say_encoding(file, guessed)
        for place, part in enumerate(border.split(decoded.text)):
            documents = strip_wrapping(part)
            left_out += len(part) - sum(map(len, documents))
            continues = number > 0 and place == 0
            for document in documents:
                if document.strip():
                    yield continues, document
                    continues = True
    if left_out and aloud:
        log.line(
            "text",
            f"{file}: {left_out:,} characters of Project Gutenberg's header and licence left out",
        )


def say_encoding(file: Path, encoding: str) -> None:
    log.line(
        "text",
        f"{file} was read as {encoding}; if its letters look wrong, save it as UTF-8, or {NAME_IT}",
    )


def buffered(file: Path) -> io.BufferedReader:
    raw: Any = Unpacked(file)
    return io.BufferedReader(raw, BLOCK)


def read_records(file: Path, records: Iterable[Any], aloud: bool) -> Iterator[str]:
    """Yield the `text` of each record of a file; others are counted and said."""
    bad = halved = 0
    try:
        for record in records:
            text = record.get("text") if isinstance(record, dict) else None
            if not isinstance(text, str):
                bad += 1
            elif text.strip():
                raw = text.encode("utf-8", "replace")
                halved += raw.count(b"?") > text.count("?")
                yield decode(raw).text
    except UnfitText:
        raise
    except UserError as error:
        raise UnfitText(str(error)) from error
    if bad and aloud:
        log.line("text", f"{file}: {log.counted(bad, 'record')} without a `text` left out")
    if halved and aloud:
        told = f"{log.counted(halved, 'record')} with half a character (a lone surrogate)"
        log.line("text", f"{file}: {told}, which is read as a question mark")


def records_of(file: Path) -> Iterator[Any]:
    if kind_of(file) == PARQUET:
        from nanoeuler.corpus.record_files import read_parquet_rows

        yield from (record for _, record in read_parquet_rows(file, str(file), ["text"]))
        return
    with buffered(file) as opened:
        if opened.peek(1):
            yield from json_records(opened, file)


def json_records(opened: io.BufferedReader, file: Path) -> Iterator[Any]:
    return (record for _, record in parse_json_records(opened, str(file)))


def has_text_records(file: Path) -> bool:
    """Whether one of the first `JUDGED` records of a file has a `text`.

    A damaged one counts as such, and is refused by its name when it is read; other JSON does not.
    """
    try:
        records = itertools.islice(records_of(file), JUDGED)
        return any(isinstance(each, dict) and isinstance(each.get("text"), str) for each in records)
    except UserError as error:
        damaged = kind_of(file) == PARQUET or isinstance(error.__cause__, UnicodeError)
        return damaged or isinstance(error, UnfitText)


def read_opening(file: Path, reading: Reading) -> tuple[list[str], float]:
    """Texts of the first `PIECE` bytes of a larger file, and about how many times as much it has.

    Raises `UnfitText`, as `read_documents` does.
    """
    size, kind = file.stat().st_size, kind_of(file)
    if kind == PARQUET:
        from nanoeuler.corpus.record_files import count_rows

        total = count_rows(file, str(file))
        rows = max(1, total * PIECE // size)
        records = itertools.islice(records_of(file), rows)
        return list(read_records(file, records, False)), total / rows
    with Unpacked(file) as opened:
        block = opened.read_fully(PIECE)
        times = size / opened.packed.tell()
    if kind in RECORDS:
        texts: list[str] = []
        lines: Any = io.BytesIO(block[: block.rfind(b"\n") + 1])
        with contextlib.suppress(UnfitText):  # the end of a list is not there
            texts.extend(read_records(file, json_records(io.BufferedReader(lines), file), False))
        return (texts, times) if texts else ([*read_documents(file, reading)], 1.0)
    encoding = find_encoding(file, block, reading.encoding)
    decoder = codecs.getincrementaldecoder(encoding)()
    return [recode(file, block, 0, decoder, encoding, last=False).decode()], times


class Piece(NamedTuple):
    text: bytes  # UTF-8
    encoding: str  # of the file


def read_pieces(file: Path, reading: Reading) -> Iterator[Piece]:
    """Yield `file` in pieces of about `PIECE` bytes, cut at the coarsest border (characters.py).

    Raises `UnfitText`, with the offset of the first byte that cannot be read.
    """
    with Unpacked(file) as opened:
        block = opened.read_fully(PIECE)
        encoding = find_encoding(file, block, reading.encoding)
        decoder = codecs.getincrementaldecoder(encoding)()
        offset, rest = 0, b""
        while block:
            following = opened.read_fully(PIECE)
            rest += recode(file, block, offset, decoder, encoding, last=not following)
            offset += len(block)
            block = following
            if len(rest) >= PIECE:
                end = cut(rest, len(rest) // 2, len(rest) - 4)
                yield Piece(rest[:end], encoding)
                rest = rest[end:]
    if rest:
        yield Piece(rest, encoding)


def recode(
    file: Path,
    block: bytes,
    offset: int,
    decoder: codecs.IncrementalDecoder,
    encoding: str,
    last: bool,
) -> bytes:
    """Return a block of `file` in UTF-8."""
    pending = len(decoder.getstate()[0])
    try:
        text = decoder.decode(block, last)
    except UnicodeDecodeError as error:
        if b"\0" in block:
            raise binary(file, offset + block.index(b"\0")) from error
        where = offset - pending + error.start
        raise UnfitText(
            f"{file}: byte {where:,} cannot be read as {encoding}, as what is before it can; mend "
            f"it, or {NAME_IT}"
        ) from error
    nul = text.find("\0")
    if nul >= 0 and not BLANK.fullmatch(text):
        raise binary(file, offset - pending + len(text[:nul].encode(encoding, "replace")))
    return text.encode("utf-8", "replace")


def binary(file: Path, nul: int) -> UnfitText:
    return UnfitText(
        f"{file}: a binary file, not text: byte {nul:,} is NUL; "
        "leave it out, or save it as plain text in UTF-8"
    )


def find_encoding(file: Path, block: bytes, named: str | None = None) -> str:
    """Return the encoding of the text that begins with `block`. Raises `UnfitText`.

    `named` is that of all files of a source that are not Unicode.
    """
    if block.startswith(UTF_16_MARKS) and not block.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(block, len(block) < PIECE)
        if named and (text.isascii() or "\0" in text):  # perhaps of seven bits, or UTF-16
            return named
    except UnicodeDecodeError as error:
        if named:
            return named
        if b"\0" in block or is_broken_utf_8(block.decode("utf-8", "replace")):
            return "utf-8"  # and the place of the damage will be said
        encoding = recognise(block)
        if encoding is None:
            raise UnfitText(
                f"{file}: not UTF-8 from byte {error.start:,} on, nor in another encoding that is "
                f"recognised; save it as UTF-8, or {NAME_IT}"
            ) from error
        return encoding
    return "iso2022_jp" if b"\x1b" in block and recognise(block) == "iso2022_jp" else "utf-8"
