"""Read precisely the parquet file of a path with DuckDB, and around the rows that are no text.

DuckDB takes a path for a pattern, reads columns out of the names of folders, and ends a query at
the first text that is not UTF-8.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

PATTERN = frozenset("*?[\\")
MOST_BAD = 100  # rows of a file: beyond them, it is damaged


@contextlib.contextmanager
def named(path: Path) -> Iterator[str]:
    """Give the file at `path` a name that is no pattern, no home folder and no address."""
    name = os.path.abspath(path)
    if not PATTERN & set(name):
        yield name
        return
    with path.open("rb") as file:
        yield f"/dev/fd/{file.fileno()}"


def reading(name: str, *options: str) -> str:
    """Return SQL for the rows of a file whose name `named` gives."""
    return f"read_parquet({', '.join([quoted(name), 'hive_partitioning = false', *options])})"


def quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def between(first: int, end: int) -> str:
    """Return SQL for the rows `first` to `end` of a file read with file_row_number."""
    return f"where file_row_number >= {first} and file_row_number < {end}"


def is_not_utf8(error: duckdb.Error) -> bool:
    """Whether a query ended at a text that is not UTF-8."""
    return "Invalid string encoding" in str(error)


def bad_rows(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    columns: Sequence[str],
    first: int,
    end: int,
    known: int = 0,
) -> list[int]:
    """Return which of the rows `first` to `end` hold a text that is not UTF-8.

    DuckDB decodes the texts of the rows that it is asked for alone, so that halves can be tried.
    `source` is SQL with file_row_number, `columns` are identifiers. Raises `duckdb.Error` for other
    damage, and when, with `known` others, there are more than `MOST_BAD`.
    """
    hashes = ", ".join(f"bit_xor(hash({column}))" for column in columns)
    try:
        connection.execute(f"select {hashes} from {source} {between(first, end)}").fetchall()
        return []
    except duckdb.Error as error:
        if not is_not_utf8(error) or known >= MOST_BAD:
            raise
    if end - first == 1:
        return [first]
    middle = (first + end) // 2
    found = bad_rows(connection, source, columns, first, middle, known)
    return found + bad_rows(connection, source, columns, middle, end, known + len(found))


def spans(first: int, end: int, bad: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the rows `first` to `end` but for the sorted `bad` ones, as ranges."""
    for row in [*(row for row in bad if first <= row < end), end]:
        if first < row:
            yield first, row
        first = row + 1
