"""Records out of a file of any shape that data sets come in: JSON, lines of JSON, either compressed with gzip, or parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoeuler.corpus.json_records import read_json_records
from nanoeuler.errors import UserError

PARQUET = b"PAR1"
BATCH = 1_000
TIME_ZONE = "WITH TIME ZONE"
"""In the name of a type whose values DuckDB makes into Python's with a package that is not installed here; nothing is learned from times."""


def read_records(path: Path, address: str) -> Iterator[tuple[str, Any]]:
    """Yield each record of the file at `path` with its place in it; `address` names the file in errors."""
    with path.open("rb") as file:
        is_parquet = file.read(len(PARQUET)) == PARQUET
    yield from read_parquet_rows(path, address) if is_parquet else read_json_records(path, address)


def read_parquet_rows(path: Path, address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import duckdb

    try:
        with duckdb.connect() as connection:
            described = connection.execute(
                "describe select * from read_parquet(?)", [str(path)]
            ).fetchall()
            wanted = ", ".join(
                '"' + name.replace('"', '""') + '"'
                for name, type_name, *_ in described
                if TIME_ZONE not in type_name
            )
            cursor = connection.execute(
                f"select {wanted or 'null'} from read_parquet(?)", [str(path)]
            )
            columns = [column[0] for column in cursor.description]
            number = 0
            while rows := cursor.fetchmany(BATCH):
                for row in rows:
                    number += 1
                    yield (
                        f"row {number}",
                        {
                            name: value
                            for name, value in zip(columns, row, strict=True)
                            if value is not None
                        },
                    )
    except duckdb.Error as error:
        raise UserError(
            f"{address}: damaged parquet ({' '.join(str(error).split())[:120]}); fetch it again"
        ) from error
