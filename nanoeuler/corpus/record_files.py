"""Read records from a file in the formats of public data sets: JSON, JSON lines or parquet.

JSON may be packed with gzip or Zstandard.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.corpus.json_records import read_json_records
from nanoeuler.corpus.packed_files import MOST_INFLATION, most_unpacked
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    import duckdb

PARQUET = b"PAR1"
BATCH = 1_000  # rows
TOLD = 5  # bad records named in the log
BYTES = "BLOB"
"""The type, or a part of its name, of columns of bytes: text, as many writers leave it."""
TIME_ZONE = "WITH TIME ZONE"
"""Part of the names of types that are skipped: DuckDB needs another package to read their values,
and nothing is learned from times."""


@dataclass
class Faults:
    """The records of the file `address` that are left out: their counted faults, and examples."""

    address: str
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, where: str, fault: str) -> None:
        self.counts[fault] += 1
        if len(self.examples) <= TOLD:
            self.examples.append(f"{where}: {fault}")

    def tell(self, total: int, good: int, what: str, remedy: str) -> None:
        """Log which of `total` records are left out.

        Raises `UserError` where `good` is 0, or more than half are left out, whose fault is `what`.
        """
        told = "; ".join(self.examples[:TOLD]) + ("; …" if len(self.examples) > TOLD else "")
        bad = self.counts.total()
        if not total:
            raise UserError(
                f"{self.address}: holds no records; correct the address, or fetch it again"
            )
        many = f"{self.address}: {bad:,} of {total:,} records"
        if not good or bad > total / 2:
            raise UserError(f"{many} {what} ({told}); {remedy}")
        if bad:
            log.line("bad", f"{many} are left out ({told})")


def read_records(
    path: Path, address: str, fields: Collection[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield each record of a file with its position ("line 3"); `address` names it in errors.

    Of a parquet file only the columns in `fields` are read, if they are given.
    """
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    if is_parquet:
        yield from read_parquet_rows(path, address, fields)
    else:
        yield from read_json_records(path, address)


def read_parquet_rows(
    path: Path, address: str, fields: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Do the same for a parquet file, a group of rows at a time. A text that is not UTF-8 comes as
    bytes."""
    with opened(path, address) as (name, connection):
        sizes = "select sum(total_uncompressed_size) from parquet_metadata(?)"
        (size,) = connection.execute(sizes, [name]).fetchall()[0]
        if size and size > most_unpacked(path.stat().st_size):
            raise UserError(
                f"{address}: unpacks to {size:,} bytes, over {MOST_INFLATION} times its size, "
                "as no data set does; correct the address"
            )
        for number, record in enumerate(read_rows(connection, name, fields), 1):
            yield f"row {number}", record


def count_rows(path: Path, address: str) -> int:
    """The rows of a parquet file, by its footer."""
    from nanoeuler.corpus.parquet_files import reading

    with opened(path, address) as (name, connection):
        return int(connection.execute(f"select count(*) from {reading(name)}").fetchall()[0][0])


@contextmanager
def opened(path: Path, address: str) -> Iterator[tuple[str, "duckdb.DuckDBPyConnection"]]:
    """A name for DuckDB of a parquet file, and a connection whose errors are explained."""
    import duckdb

    from nanoeuler.corpus.parquet_files import named

    try:
        with named(path) as name, duckdb.connect() as connection:
            yield name, connection
    except (MemoryError, duckdb.Error) as error:
        if isinstance(error, MemoryError) or "Out of Memory Error" in str(error):
            raise UserError(
                f"{address}: this machine has too little free memory for its records; "
                "end other programs, or give a smaller file"
            ) from error
        problem = re.sub("/dev/fd/[0-9]+", address, " ".join(str(error).split()))[:120]
        raise UserError(f"{address}: damaged parquet ({problem}); fetch it again") from error


def read_rows(
    connection: "duckdb.DuckDBPyConnection", name: str, fields: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the file that DuckDB opens by `name`, without nulls."""
    import duckdb

    from nanoeuler.corpus.parquet_files import bad_rows, between, identifier, is_not_utf8, reading
    from nanoeuler.corpus.parquet_ranges import read_row_groups

    described = connection.execute(f"describe select * from {reading(name)}").fetchall()
    columns = [
        column
        for column, kind, *_ in described
        if TIME_ZONE not in kind and (fields is None or column in fields)
    ]
    quoted = [identifier(column) for column in columns]
    of_bytes = any(BYTES in kind for _, kind, *_ in described)

    def select(wanted: str, source: str) -> Iterator[tuple[Any, ...]]:
        cursor = connection.execute(f"select {wanted} from {source}")
        while rows := cursor.fetchmany(BATCH):
            yield from rows

    def record(row: Iterable[Any]) -> dict[str, Any]:
        values = zip(columns or ["null"], row, strict=True)
        found = {column: value for column, value in values if value is not None}
        return as_text(found) if of_bytes else found

    def cell(column: str, row: str) -> Any:
        try:
            return next(select(column, row))[0]
        except duckdb.Error as error:
            if is_not_utf8(error):
                return b"\xff"
            raise

    wanted, bad = ", ".join(quoted) or "null", 0
    rows = reading(name, "file_row_number = true")
    for group in read_row_groups(connection, name):
        number, end = group.first_row, group.end_row
        try:
            for row in select(wanted, f"{rows} {between(number, end)}"):
                yield record(row)
                number += 1
            continue
        except duckdb.Error as error:
            if not is_not_utf8(error):
                raise
        for last in [*bad_rows(connection, rows, quoted, number, end, bad), end]:
            for row in select(wanted, f"{rows} {between(number, last)}"):
                yield record(row)
            if last < end:
                bad += 1
                yield record(cell(column, f"{rows} {between(last, last + 1)}") for column in quoted)
            number = last + 1


def as_text(value: Any) -> Any:
    """Return `value` with all bytes in it that are UTF-8 as text."""
    if isinstance(value, dict):
        return {key: as_text(part) for key, part in value.items()}
    if isinstance(value, list):
        return [as_text(part) for part in value]
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value
