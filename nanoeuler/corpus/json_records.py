"""Read records from a JSON file: a list, or one object a line, plain or compressed with gzip."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError

GZIP = b"\x1f\x8b"
UNREADABLE = (ValueError, RecursionError)
"""Errors of the JSON reader: ill-formed text or a number of thousands of digits; deep nesting."""


def read_json_records(path: Path, address: str) -> Iterator[tuple[str, Any]]:
    """Yield each record of a file, any JSON value, with its position ("record 3", "line 3").

    A line that is not JSON yields its text, so that the caller may count it as a bad record.
    `address` names the file in errors.
    """
    yield from parse_json_records(decode_text(path.read_bytes(), address), address)


def parse_json_records(text: str, address: str) -> Iterator[tuple[str, Any]]:
    """Do the same for the text of a file."""
    if text.lstrip()[:1] == "[":
        try:
            records = json.loads(text)
        except UNREADABLE as error:
            problem = f"beyond what can be read ({error})"
            if isinstance(error, json.JSONDecodeError):
                problem = f"{error.msg} in line {error.lineno}, column {error.colno}"
            raise UserError(
                f"{address}: not valid JSON: {problem}; it may have been cut off: fetch it again"
            ) from error
        yield from ((f"record {number}", record) for number, record in enumerate(records, 1))
        return
    if text.lstrip()[:1] != "{":
        beginning = " ".join(text.split())[:60]
        raise UserError(
            f"{address}: neither a JSON list nor lines of JSON objects; "
            f"it begins with {beginning!r}: correct the address, or fetch it again"
        )
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except UNREADABLE:
                yield f"line {number}", line


def decode_text(raw: bytes, address: str) -> str:
    """Decode the bytes of a file, plain or compressed with gzip."""
    try:
        if raw.startswith(GZIP):
            raw = gzip.decompress(raw)
        return raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{address}: damaged gzip ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{address}: not UTF-8 text (byte {error.start:,}); "
            "save it as UTF-8, or correct the address"
        ) from error
