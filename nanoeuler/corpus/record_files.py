"""Read records from a file in the formats of public data sets: JSON, JSON lines or parquet.

JSON may be compressed with gzip.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoeuler.corpus.json_records import read_json_records
from nanoeuler.corpus.limits import MOST_INFLATION, most_unpacked
from nanoeuler.errors import UserError

PARQUET = b"PAR1"
BATCH = 1_000  # rows
BYTES = "BLOB"
"""The type, or a part of its name, of columns of bytes: text, as many writers leave it."""
TIME_ZONE = "WITH TIME ZONE"
"""Part of the names of types that are skipped: DuckDB needs another package to read their values,
and nothing is learned from times."""


def read_records(path: Path, address: str) -> Iterator[tuple[str, Any]]:
    """Yield each record of a file with its position ("line 3"); `address` names it in errors."""
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    yield from read_parquet_rows(path, address) if is_parquet else read_json_records(path, address)


def read_parquet_rows(path: Path, address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import duckdb

    try:
        with duckdb.connect() as connection:
            sizes = "select sum(total_uncompressed_size) from parquet_metadata(?)"
            (size,) = connection.execute(sizes, [str(path)]).fetchall()[0]
            if size and size > most_unpacked(path.stat().st_size):
                raise UserError(
                    f"{address}: unpacks to {size:,} bytes, over {MOST_INFLATION} times its size, "
                    "as no data set does; correct the address"
                )
            described = connection.execute(
                "describe select * from read_parquet(?)", [str(path)]
            ).fetchall()
            readable = [name for name, kind, *_ in described if TIME_ZONE not in kind]
            wanted = ", ".join('"' + name.replace('"', '""') + '"' for name in readable)
            cursor = connection.execute(
                f"select {wanted or 'null'} from read_parquet(?)", [str(path)]
            )
            columns = [column[0] for column in cursor.description]
            of_bytes = any(BYTES in kind for _, kind, *_ in described)
            number = 0
            while rows := cursor.fetchmany(BATCH):
                for row in rows:
                    number += 1
                    values = zip(columns, row, strict=True)
                    record = {name: value for name, value in values if value is not None}
                    yield f"row {number}", as_text(record) if of_bytes else record
    except (MemoryError, duckdb.Error) as error:
        if isinstance(error, MemoryError) or "Out of Memory Error" in str(error):
            raise UserError(
                f"{address}: this machine has too little free memory for its records; "
                "end other programs, or give a smaller file"
            ) from error
        raise UserError(
            f"{address}: damaged parquet ({' '.join(str(error).split())[:120]}); fetch it again"
        ) from error


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
