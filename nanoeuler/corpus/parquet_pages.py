"""Pages out of parquet files, with DuckDB: row group by row group, those that are kept are written as they come (extracted_pages.py says how).

No more texts than those of a row group are ever in memory. They are written without compression: each is decoded once, and every corpus made of
them reads them twice.

Row groups are brought whole, pages are kept one by one. So that little is fetched in vain, a row group that could pass the budget by more
than a tenth is left alone, unless nothing was kept yet.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import duckdb
import numpy as np

from nanoeuler import log
from nanoeuler.corpus.arrow_text import read_texts
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.extracted_pages import PAGE, index_of, origins_of
from nanoeuler.corpus.page_filters import REMEDIES, Filters, Page, Selection, measure
from nanoeuler.corpus.parquet_ranges import RowGroup, read_row_groups
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_write

LABELS = ("id", "url", "language", "language_score", "int_score")
OVERSHOOT = 1.1  # of the budget, that a row group may be fetched for


class NothingLeft(UserError):
    """No page passes the filters."""


class Damaged(UserError):
    """Not a parquet file with text, or one whose content cannot be read."""


@dataclass
class Parquet:
    """A file to take pages from. `name` goes into the ids of pages that have none; `fetch` brings columns of a row group to `path`."""

    path: Path
    name: str
    fetch: Callable[[RowGroup, Collection[str]], None] = lambda group, columns: None
    columns: list[str] = field(default_factory=list)
    groups: list[RowGroup] = field(default_factory=list)
    read: list[RowGroup] = field(default_factory=list)  # the row groups that pages were taken from
    kept: bytearray = field(default_factory=bytearray)  # a "1" or "0" for each of their rows


def write_pages(
    files: Sequence[Parquet], filters: Filters, output: Path, address: str
) -> dict[str, Any]:
    """Take pages from `files` in their order and write them to `output` and beside it. Returns what became of all pages."""
    selection = Selection(filters)
    with connected(output.parent) as connection, explain_errors(address, output):
        for file in files:
            describe(connection, file, address)
        missing = sorted({label for file in files for label in LABELS if label not in file.columns})
        if missing:
            log.line(
                "fineweb",
                f"{address}: has no column {', '.join(missing)}; nothing is dropped by it",
            )
        index_of(output).unlink(
            missing_ok=True
        )  # it must not describe texts that are being exchanged
        with atomic_write(index_of(output), "wb") as index:
            with atomic_write(output, "wb") as texts:
                stopped = select_pages(connection, files, selection, texts, index)
                if not selection.kept:
                    raise NothingLeft(f"{address}: {selection.why_empty()}")
            with atomic_write(origins_of(output), "wb") as origins:
                copy_origins(connection, files, Path(origins.name))
    read = [group for file in files for group in file.read]
    return {
        "missing_columns": missing,
        "rows": sum(group.end_row - group.first_row for file in files for group in file.groups),
        "row_groups": sum(len(file.groups) for file in files),
        "row_groups_read": len(read),
        "rows_read": selection.kept + selection.dropped.total(),
        "dropped": {reason: selection.dropped[reason] for reason in REMEDIES},
        "kept": selection.kept,
        "text_bytes": selection.bytes,
        "compressed_text_bytes_read": sum(
            group.columns["text"].stop - group.columns["text"].start for group in read
        ),
        "stopped": stopped,
    }


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB without network and with little memory; one thread makes the file that it writes the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "threads": 1,
        "memory_limit": "1GB",
        "temp_directory": str(folder / ".duckdb"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute("set enable_progress_bar = false")
        yield connection


@contextlib.contextmanager
def explain_errors(address: str, output: Path) -> Iterator[None]:
    """Say what DuckDB met in the words of this project: a damaged file, or a full disk."""
    try:
        yield
    except duckdb.Error as error:
        if os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output)) from error
        problem = str(error).splitlines()[0]
        raise Damaged(
            f"{address}: damaged, or not a parquet file ({problem}); "
            "correct the address, or fetch it again"
        ) from error


def describe(connection: duckdb.DuckDBPyConnection, file: Parquet, address: str) -> None:
    """Read the footer: columns and row groups."""
    types = {
        name: kind
        for name, kind, *_ in connection.execute(
            f"describe select * exclude (file_row_number) from {reading(file)}"
        ).fetchall()
    }
    if types.get("text") != "VARCHAR":
        kind = (
            f"its column text holds {types['text']}"
            if "text" in types
            else f"it has no column text (only {', '.join(types)})"
        )
        raise Damaged(f"{address}: {kind}; give a parquet file with a column text of strings")
    file.columns = list(types)
    file.groups = read_row_groups(connection, file.path)


def reading(file: Parquet) -> str:
    return f"read_parquet({quoted(file.path)}, file_row_number = true, binary_as_string = true)"


def quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def select_pages(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[Parquet],
    selection: Selection,
    output: IO[bytes],
    index: IO[bytes],
) -> str:
    """Go through the row groups until the budget is used up, write the pages kept and note their rows. Returns why it stopped: "budget" or "end"."""
    budget = selection.filters.max_bytes_per_shard
    text = sum(group.columns["text"].size for file in files for group in file.groups)
    with log.Progress("fineweb", min(budget, text), "MB", 1e-6) as progress:
        for file in files:
            wanted = ["text", *(label for label in LABELS if label in file.columns)]
            for group in file.groups:
                if (
                    selection.kept
                    and selection.bytes + group.columns["text"].size > OVERSHOOT * budget
                ):
                    return "budget"
                file.fetch(group, wanted)
                file.read.append(group)
                before = selection.bytes
                texts, pages = look_at(connection, file, group, selection.filters)
                kept = np.zeros(len(texts), bool)
                for row, page in enumerate(pages):
                    kept[row] = selection.keep(page)
                    if selection.full:
                        break
                file.kept += (kept + ord("0")).astype(np.uint8).tobytes()
                output.writelines(texts.take(kept).runs())
                index.write(
                    index_entries(
                        texts.sizes[kept],
                        [page.sha256 for page, wanted in zip(pages, kept, strict=True) if wanted],
                        before,
                    )
                )
                progress.update(selection.bytes - before, kept=selection.kept)
                if selection.full:
                    return "budget"
    return "end"


def look_at(
    connection: duckdb.DuckDBPyConnection, file: Parquet, group: RowGroup, filters: Filters
) -> tuple[Batch, list[Page]]:
    """The texts of a row group and what is known of them. A label that the file does not have is given the value that its filter asks for."""

    def label(name: str, kind: str, otherwise: object) -> str:
        return (
            f"try_cast({name} as {kind})"
            if name in file.columns
            else f"{quoted(otherwise)}::{kind}"
        )

    rows = f"from {reading(file)} where file_row_number >= {group.first_row} and file_row_number < {group.end_row}"
    labels = connection.execute(
        f"""
        select {label("language", "varchar", filters.language)}, {label("language_score", "double", filters.min_language_score)},
               {label("int_score", "double", filters.min_score)} {rows}
        """
    ).fetchall()
    texts = read_texts(connection, f"select coalesce(text, '') as text {rows}")
    characters, blank = measure(texts)
    columns = characters, texts.sizes.tolist(), texts.hashes(), blank
    return texts, [Page(*known, *seen) for known, *seen in zip(labels, *columns, strict=True)]


def index_entries(sizes: np.ndarray, hashes: Sequence[bytes], before: int) -> np.ndarray:
    """Pages (PAGE) for the index, their texts following `before` bytes of others."""
    pages = np.empty(len(sizes), PAGE)
    pages["end"] = before + np.cumsum(sizes)
    pages["sha256"] = np.frombuffer(b"".join(hashes), "V32")
    return pages


def copy_origins(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Parquet], output: Path
) -> None:
    """Write id and url of the rows kept, in their order, from parquet to parquet."""
    parts = []
    for number, file in enumerate(files):
        if not file.kept:
            continue
        connection.execute(f"set variable kept_{number} = ?::bit", [file.kept.decode()])
        made_up = f"{quoted(file.name + ':')} || file_row_number"
        page_id = (
            f"coalesce(nullif(id::varchar, ''), {made_up})" if "id" in file.columns else made_up
        )
        url = "coalesce(url::varchar, '')" if "url" in file.columns else "''"
        rows = f"case when file_row_number < {len(file.kept)} then get_bit(getvariable('kept_{number}'), file_row_number::int) = 1 else false end"
        parts.append(
            f"select {page_id} as id, {url} as url from {reading(file)} where file_row_number < "
            f"{file.read[-1].end_row} and {rows}"
        )
    query = " union all ".join(parts)
    connection.execute(
        f"copy ({query}) to {quoted(output)} (format parquet, compression zstd, use_tmp_file false)"
    )
