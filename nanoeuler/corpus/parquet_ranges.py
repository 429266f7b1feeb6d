"""Fetch parts of a remote parquet file to their offsets in a sparse local copy.

A parquet file is a row of column chunks, one per column and row group, and a footer with their
offsets. The footer is fetched first, into a local file of the same length that is otherwise a hole;
then the wanted columns of one row group after another, each to its own offset. A reader of just
those columns and row groups cannot tell that the rest is missing.

The fetched ranges are noted beside the file with their hashes, so that an interrupted extraction
can resume.

A column chunk is a row of pages, each with a header in Thrift's compact protocol. Of its fields,
number 3 is the size of the page that follows and number 4 its CRC-32, which not every writer gives.

    https://github.com/apache/parquet-format (README, "Checksumming")
    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO, NamedTuple

import duckdb

from nanoeuler.corpus.remote_file import RemoteFile, StartOver
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_text, write_json

MAGIC = b"PAR1"
TAIL = 8  # bytes: the footer's length (little-endian, 4 bytes) and the magic
LARGEST_FOOTER = 100_000_000  # bytes, which must fit in memory. FineWeb-Edu's have 2 MB
SMALL_GAP = 8_192  # bytes: fetching a gap this small along costs less than another request


class Chunk(NamedTuple):
    """One column of one row group: bytes start to stop of the file, `size` when decompressed."""

    start: int
    stop: int
    size: int


class RowGroup(NamedTuple):
    """Rows first_row to end_row of the file."""

    first_row: int
    end_row: int
    columns: dict[str, Chunk]


def read_row_groups(connection: duckdb.DuckDBPyConnection, path: Path | str) -> list[RowGroup]:
    """Read the row groups from the footer of a parquet file. Raises `duckdb.Error` for damage.

    One without rows has nothing to read, wherever it says that its columns are.
    """
    found = connection.execute(
        """
        select row_group_id, row_group_num_rows, split_part(path_in_schema, ', ', 1),
               least(
                   coalesce(nullif(dictionary_page_offset, 0), data_page_offset), data_page_offset
               ),
               total_compressed_size, total_uncompressed_size
        from parquet_metadata(?) order by row_group_id, column_id
        """,
        [str(path)],
    ).fetchall()
    groups: list[RowGroup] = []
    for number, rows, column, *place in found:
        if rows == 0:
            place = [0, 0, 0]
        if None in place or min(rows, *place) < 0:
            raise duckdb.Error(f"row group {number} does not say where its column {column} is")
        start, compressed, size = place
        if number == len(groups):
            first = groups[-1].end_row if groups else 0
            groups.append(RowGroup(first, first + rows, {}))
        groups[-1].columns[column] = Chunk(start, start + compressed, size)
    return groups


class SparseCopy:
    """A copy of `remote` at `path` that holds the ranges asked for, and holes elsewhere.

    Opening it fetches the footer. Raises `StartOver` (see `RemoteFile`) when the server serves no
    ranges or the file has changed.
    """

    def __init__(self, remote: RemoteFile, path: Path):
        self.remote, self.path = remote, path
        self.note = path.with_name(f"{path.name}.json")
        self.ranges: list[tuple[int, int, str]] = []  # start, stop, SHA-256 of the bytes
        self.resume()
        try:
            tail = b"".join(remote.read(-TAIL))
        except StartOver:
            if not self.ranges:
                raise
            self.remove()  # it belongs to an older version of the file
            self.ranges = []
            tail = b"".join(remote.read(-TAIL))
        if not remote.validator:  # each range may be of another version
            self.remove()
            raise StartOver("the server does not tell whether the file is still the same")
        self.size = size = remote.size or 0
        footer = int.from_bytes(tail[:4], "little")
        most = min(size - TAIL - len(MAGIC), LARGEST_FOOTER)
        if tail[4:] != MAGIC or not 0 < footer <= most:
            self.remove()
            raise UserError(
                f"{remote.url}: not a parquet file, or a damaged one "
                "(its end is not that of one); correct the address, or try again later"
            )
        with open(path, "ab") as file:
            file.truncate(size)
        self.fetch_ranges([(size - TAIL - footer, size)])

    def resume(self) -> None:
        """Take over what an earlier attempt fetched of the same file."""
        try:
            note = json.loads(read_text(self.note))
            with open(self.path, "rb") as file:
                self.ranges = [
                    (start, stop, sha256)
                    for start, stop, sha256 in note["ranges"]
                    if note["url"] == self.remote.url
                    and hashlib.sha256(read_range(file, start, stop)).hexdigest() == sha256
                ]
            self.remote.validator = str(note["validator"]) if self.ranges else None
        except (FileNotFoundError, UserError, KeyError, TypeError, ValueError):
            self.ranges = []
        if not self.ranges:
            self.remove()

    def fetch(self, group: RowGroup, columns: Collection[str]) -> bool:
        """Fetch the chunks of `columns` of a row group.

        Returns whether all of their pages have a checksum. Raises `duckdb.Error` for damage.
        """
        chunks = [group.columns[column] for column in columns]
        if not all(chunk.start < chunk.stop <= self.size for chunk in chunks):
            raise duckdb.Error("a column lies outside of the file")
        self.fetch_ranges(merge((chunk.start, chunk.stop) for chunk in chunks))
        try:
            with open(self.path, "rb") as file:
                return all([check_pages(read_range(file, *chunk[:2])) for chunk in chunks])
        except BadPage as error:
            raise duckdb.Error(str(error)) from error

    def fetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        with open(self.path, "r+b") as file:
            for start, stop in ranges:
                if any(first <= start and stop <= last for first, last, _ in self.ranges):
                    continue
                file.seek(start)
                sha256 = hashlib.sha256()
                with contextlib.closing(self.remote.read(start, stop)) as chunks:
                    for chunk in chunks:
                        file.write(chunk)
                        sha256.update(chunk)
                self.ranges.append((start, stop, sha256.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        write_json(
            self.note,
            {"url": self.remote.url, "validator": self.remote.validator, "ranges": self.ranges},
        )

    def remove(self) -> None:
        for path in (self.path, self.note):
            path.unlink(missing_ok=True)
        self.remote.validator = self.remote.size = None

    @property
    def bytes_fetched(self) -> int:
        return sum(stop - start for start, stop, _ in self.ranges)


def read_range(file: IO[bytes], start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort `ranges` and join those with no more than a small gap between them."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start - merged[-1][1] <= SMALL_GAP:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


PAGE_SIZE, CRC = 3, 4  # fields of a page header
DEEPEST = 8  # structs within structs; page headers have 3


class BadPage(Exception):
    """A page, or the header of one, is damaged."""


def check_pages(chunk: bytes) -> bool:
    """Return whether all pages of a column chunk have a checksum.

    Raises `BadPage` when one differs, or when the pages do not fill the chunk.
    """
    position = 0
    all_have_one = True
    while position < len(chunk):
        try:
            fields, position = read_struct(chunk, position)
        except IndexError as error:
            raise BadPage("a page's header is cut off") from error
        end = position + fields.get(PAGE_SIZE, -1)
        if not position <= end <= len(chunk):
            raise BadPage("a page does not end within its column")
        if CRC not in fields:
            all_have_one = False
        elif zlib.crc32(chunk[position:end]) != fields[CRC] & 0xFFFFFFFF:
            raise BadPage("a page differs from its checksum")
        position = end
    return all_have_one


def read_struct(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, int], int]:
    """Return the integers of a struct by the number of their field, and where the struct ends."""
    if depth > DEEPEST:
        raise BadPage("a page's header is no header")
    fields: dict[int, int] = {}
    number = 0
    while kind := data[position] & 15:
        step = data[position] >> 4
        position += 1
        if step:
            number += step
        else:
            number, position = read_integer(data, position)
        if kind in (4, 5, 6):
            fields[number], position = read_integer(data, position)
        else:
            position = skip(data, position, kind, depth)
    return fields, position + 1


def skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return where the value of type `kind` ends that is no integer."""
    if kind in (1, 2):  # true and false, which need no byte
        return position
    if kind in (3, 7):  # byte and double
        return position + (1 if kind == 3 else 8)
    if kind == 8:  # text
        size, position = read_varint(data, position)
        return position + size
    if kind == 12:
        return read_struct(data, position, depth + 1)[1]
    raise BadPage("a page's header is no header")  # lists and maps


def read_integer(data: bytes, position: int) -> tuple[int, int]:
    value, position = read_varint(data, position)
    return value >> 1 ^ -(value & 1), position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise BadPage("a page's header is no header")
