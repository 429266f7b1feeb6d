"""Fetch parts of a remote parquet file to their offsets in a sparse local copy.

A parquet file is a row of column chunks, one per column and row group, and a footer with their
offsets. The footer is fetched first, into a local file of the same length that is otherwise a hole;
then the wanted columns of one row group after another, each to its own offset. A reader of just
those columns and row groups cannot tell that the rest is missing.

The fetched ranges are noted beside the file, so that an interrupted extraction can resume.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nanoeuler.corpus.remote_file import RemoteFile, StartOver
from nanoeuler.errors import UserError
from nanoeuler.files import write_json

if TYPE_CHECKING:
    import duckdb

MAGIC = b"PAR1"
TAIL = 8  # bytes: the footer's length (little-endian, 4 bytes) and the magic
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


def read_row_groups(connection: "duckdb.DuckDBPyConnection", path: Path) -> list[RowGroup]:
    """Read the row groups from the footer of a parquet file. Raises `duckdb.Error` for damage."""
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
    for number, rows, column, start, compressed, size in found:
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
        self.ranges: list[tuple[int, int]] = []
        self.resume()
        try:
            tail = b"".join(remote.read(-TAIL))
        except StartOver:
            if not self.ranges:
                raise
            self.remove()  # it belongs to an older version of the file
            self.ranges = []
            tail = b"".join(remote.read(-TAIL))
        self.size = size = remote.size or 0
        footer = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or not 0 < footer <= size - TAIL - len(MAGIC):
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
            note = json.loads(self.note.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            note = {}
        if note.get("url") == self.remote.url and note.get("validator") and self.path.exists():
            self.remote.validator = note["validator"]
            self.ranges = [(start, stop) for start, stop in note["ranges"]]
        else:
            self.remove()

    def fetch(self, group: RowGroup, columns: Collection[str]) -> None:
        """Fetch the chunks of `columns` of a row group."""
        chunks = [group.columns[column] for column in columns]
        self.fetch_ranges(merge((chunk.start, chunk.stop) for chunk in chunks))

    def fetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        with open(self.path, "r+b") as file:
            for start, stop in ranges:
                if any(first <= start and stop <= last for first, last in self.ranges):
                    continue
                file.seek(start)
                with contextlib.closing(self.remote.read(start, stop)) as chunks:
                    for chunk in chunks:
                        file.write(chunk)
                self.ranges.append((start, stop))
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
        return sum(stop - start for start, stop in self.ranges)


def merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort `ranges` and join those with no more than a small gap between them."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start - merged[-1][1] <= SMALL_GAP:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
