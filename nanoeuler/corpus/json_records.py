"""Read records from a JSON file: a list, or one object a line, plain or packed (gzip, Zstandard).

Records are read one after another, so that memory holds one of them however large the file is, and
however much a compressed one unpacks to.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from nanoeuler.corpus.packed_files import MOST_INFLATION, most_unpacked, unpacker
from nanoeuler.errors import UserError

PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""The first bytes of packed files, and their usual suffix."""
UNREADABLE = (ValueError, RecursionError)
"""Errors of the JSON reader: ill-formed text or a number of thousands of digits; deep nesting."""
LARGEST_RECORD = 10_000_000
"""Bytes of a record's JSON: several books. A hostile one takes up to 25 times as much memory."""
BLOCK = 1 << 20  # bytes read at once
BLANK = re.compile(r"[ \t\r\n]*")
LONGEST_PIECE = 16  # characters of the longest piece of JSON but texts and numbers, and more


class Ration:
    """The bytes that may still be unpacked from a file of `size` bytes, in all its parts."""

    def __init__(self, size: int):
        self.most = self.left = most_unpacked(size)


def check_unpacked(opened: Callable[[], IO[bytes]], address: str, ration: Ration) -> None:
    """Unpack what `opened` gives, to be done before it is parsed: that of a bomb takes minutes.

    Raises `UserError` when it is more than `ration` allows, or damaged.
    """
    with unpack(opened) as reader:
        try:
            while block := reader.read(BLOCK):
                ration.left -= len(block)
                if ration.left < 0:
                    raise UserError(
                        f"{address}: unpacks to more than {ration.most:,} bytes, over "
                        f"{MOST_INFLATION} times its size, as no data set does; "
                        "if it is one, unpack it and name the unpacked file"
                    )
        except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
            kind = "gzip" if isinstance(reader.raw, gzip.GzipFile) else "Zstandard"
            raise UserError(f"{address}: damaged {kind} ({error}); fetch it again") from error


def unpack(opened: Callable[[], IO[bytes]]) -> io.BufferedReader:
    """Return a reader of the bytes that `opened` gives, which may be packed."""
    packed: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, opened()), BLOCK)
    beginning = packed.peek(max(map(len, PACKED)))
    suffix = next((PACKED[magic] for magic in PACKED if beginning.startswith(magic)), None)
    return io.BufferedReader(unpacker(packed, suffix), BLOCK) if suffix else packed


def read_json_records(path: Path, address: str) -> Iterator[tuple[str, Any]]:
    """Yield each record of a file, any JSON value, with its position ("record 3", "line 3").

    A line that is not JSON yields its text, so that the caller may count it as a bad record.
    `address` names the file in errors.
    """

    def opened() -> IO[bytes]:
        return path.open("rb")

    check_unpacked(opened, address, Ration(path.stat().st_size))
    with unpack(opened) as file:
        yield from parse_json_records(file, address)


def parse_json_records(file: io.BufferedReader, address: str) -> Iterator[tuple[str, Any]]:
    """Do the same for the bytes of a file."""
    if file.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
    line = 1
    while blanks := leading_blanks(file.peek()):
        line += file.read(blanks).count(b"\n")
    first = file.peek()[:1]
    if first == b"[":
        yield from parse_list(decoded(file, address), address, line)
    elif first == b"{":
        yield from parse_lines(file, address, line)
    else:
        beginning = " ".join(next(decoded(file, address))[:240].split())[:60]
        raise UserError(
            f"{address}: neither a JSON list nor lines of JSON objects; "
            f"it begins with {beginning!r}: correct the address, or fetch it again"
        )


def leading_blanks(block: bytes) -> int:
    return len(block) - len(block.lstrip())


def parse_lines(file: io.BufferedReader, address: str, number: int) -> Iterator[tuple[str, Any]]:
    """Yield the records of JSON lines, of which the first is line `number` of the file."""
    while raw := file.readline(LARGEST_RECORD + 1):
        if len(raw) > LARGEST_RECORD:
            raise too_long(address, f"line {number}")
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(address, f"line {number}") from error
        if text.strip():
            try:
                yield f"line {number}", json.loads(text)
            except UNREADABLE:
                yield f"line {number}", text
        number += 1


def parse_list(texts: Iterator[str], address: str, line: int) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a JSON list, whose text begins in line `line` of the file."""
    window = Window(texts, line)
    number = 0
    try:
        window.expect("[")
        while window.ahead() != "]":
            if number:
                window.expect(",")
            number += 1
            try:
                value = window.value()
            except Endless as error:
                raise too_long(address, f"record {number}") from error
            yield f"record {number}", value
        window.expect("]")
        window.expect("")
    except UNREADABLE as error:
        problem = f"beyond what can be read ({error})"
        if isinstance(error, json.JSONDecodeError):
            problem = f"{error.msg} in {window.place(error)}"
        raise UserError(
            f"{address}: not valid JSON: {problem}; it may have been cut off: fetch it again"
        ) from error


class Endless(Exception):
    """A JSON value does not end within `LARGEST_RECORD` characters."""


class Window:
    """The part of a long JSON text that is being read: `text` from `position` on."""

    decoder = json.JSONDecoder()

    def __init__(self, texts: Iterator[str], line: int):
        self.texts = texts
        self.text, self.position = "", 0
        self.line, self.column = line, 0  # of the first character of the text; lines count from 1

    def more(self, least: int) -> bool:
        """Add at least `least` characters, if there are so many, and forget those read.

        Returns whether some were added.
        """
        added = ""
        while len(added) < least and (piece := next(self.texts, "")):
            added += piece
        if added:
            read = self.text[: self.position]
            self.line += read.count("\n")
            self.column = len(read) - 1 - read.rfind("\n") + (0 if "\n" in read else self.column)
            self.text, self.position = self.text[self.position :] + added, 0
        return bool(added)

    def ahead(self) -> str:
        """Return the next character that is not blank, or nothing at the end."""
        while True:
            blank = BLANK.match(self.text, self.position)
            self.position = blank.end() if blank else self.position
            if self.position < len(self.text) or not self.more(1):
                return self.text[self.position : self.position + 1]

    def expect(self, mark: str) -> None:
        """Read the character `mark`, or the end of the text for an empty one."""
        if self.ahead() != mark:
            wanted = f"Expecting {mark!r}" if mark else "Extra data"
            raise json.JSONDecodeError(wanted, self.text, self.position)
        self.position += len(mark)

    def value(self) -> Any:
        """Read a value. Raises `Endless`, or an error that is `UNREADABLE`."""
        self.ahead()
        while True:
            have = len(self.text) - self.position
            try:
                value, end = self.decoder.raw_decode(self.text, self.position)
                whole = end <= len(self.text) - LONGEST_PIECE  # else a number may go on
                if whole or not self.more(1):
                    if end - self.position > LARGEST_RECORD:
                        raise Endless
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                near_end = error.pos > len(self.text) - LONGEST_PIECE
                if not near_end and not error.msg.startswith("Unterminated string"):
                    raise
                if have > LARGEST_RECORD:
                    raise Endless from error
                if not self.more(have):
                    raise

    def place(self, error: json.JSONDecodeError) -> str:
        column = error.colno + (self.column if error.lineno == 1 else 0)
        return f"line {self.line + error.lineno - 1}, column {column}"


def decoded(file: io.BufferedReader, address: str) -> Iterator[str]:
    """Yield the UTF-8 text of a file in pieces, at least one."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    block = b"more"
    while block:
        block = file.read(BLOCK)
        before = position - len(decoder.getstate()[0])
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_utf8(address, f"byte {before + error.start:,}") from error
        position += len(block)


def too_long(address: str, where: str) -> UserError:
    return UserError(
        f"{address}: {where} is longer than {LARGEST_RECORD:,} bytes, or its end is missing; "
        "take it out, or fetch the file again"
    )


def not_utf8(address: str, where: str) -> UserError:
    return UserError(
        f"{address}: not UTF-8 text ({where}); save it as UTF-8, or correct the address"
    )
