"""Select pages from parquet files with DuckDB and write them (extracted_pages.py has the format).

Row groups are read one after another, so that memory holds the texts of one at most. Texts are
written without compression: each is decoded once, and every corpus made of them reads them twice.

Row groups are fetched whole, pages are kept one by one. So that little is fetched in vain, a row
group that could exceed the budget by more than a tenth is skipped, unless nothing was kept yet.
"""

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import duckdb
import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.extracted_pages import PAGE, index_of, origins_of
from nanoeuler.corpus.packed_files import MOST_INFLATION, most_unpacked
from nanoeuler.corpus.page_filters import NOT_UTF8, REMEDIES, Filters, Page, Selection
from nanoeuler.corpus.parquet_files import (
    bad_rows,
    between,
    is_not_utf8,
    named,
    quoted,
    reading,
    spans,
)
from nanoeuler.corpus.parquet_ranges import RowGroup, read_row_groups
from nanoeuler.errors import UserError
from nanoeuler.storage.files import atomic_write
from nanoeuler.system.machine import free_memory

LABELS = ("id", "url", "language", "language_score", "int_score")
OVERSHOOT = 1.1  # times the budget: the most that fetching another row group may lead to
MEMORY = 1_000_000_000  # bytes that DuckDB may take, beside the texts of a row group
BLANK = b" \t\n\r"


class NothingLeft(UserError):
    """No page passes the filters."""


class Damaged(UserError):
    """Not a parquet file with text, or one whose content cannot be read."""


class ShortOfMemory(UserError):
    """The texts of a row group do not fit in memory."""


@dataclass
class Parquet:
    """A file to take pages from.

    `name` goes into the ids of pages that have none; `fetch` downloads columns of a row group into
    `path`.
    """

    path: Path
    name: str
    fetch: Callable[[RowGroup, Collection[str]], object] = lambda group, columns: None
    columns: list[str] = field(default_factory=list)
    groups: list[RowGroup] = field(default_factory=list)
    read: list[RowGroup] = field(default_factory=list)  # the row groups that pages were taken from
    kept: bytearray = field(default_factory=bytearray)  # a "1" or "0" for each of their rows
    bad: list[int] = field(default_factory=list)  # rows that are not UTF-8
    handle: str = ""  # by which DuckDB opens it, if not by its path

    @property
    def source(self) -> str:
        """SQL for its rows."""
        name = self.handle or str(self.path)
        return reading(name, "file_row_number = true", "binary_as_string = true")

    @property
    def wanted(self) -> list[str]:
        """The columns that are read."""
        return ["text", *(label for label in LABELS if label in self.columns)]


def write_pages(
    files: Sequence[Parquet], filters: Filters, output: Path, address: str
) -> dict[str, Any]:
    """Write the pages of `files` that pass `filters` to `output`, index and origins beside it.

    Returns counts of kept and dropped pages. `address` names the files in errors.
    """
    selection = Selection(filters)
    with (
        contextlib.ExitStack() as opened,
        connected(output.parent) as connection,
        explain_errors(address, output),
    ):
        for file in files:
            file.handle = opened.enter_context(named(file.path))
            describe(connection, file, address)
        give_memory(connection, files, address)
        missing = sorted({label for file in files for label in LABELS if label not in file.columns})
        if missing:
            told = f"{address}: has no column {', '.join(missing)}; nothing is dropped by it"
            log.line("fineweb", told)
        # the index must not describe texts that are being replaced
        index_of(output).unlink(missing_ok=True)
        with atomic_write(index_of(output), "wb") as index:
            with atomic_write(output, "wb") as texts:
                stopped = select_pages(connection, files, selection, texts, index)
                if not selection.kept:
                    raise NothingLeft(f"{address}: {selection.why_empty()}")
            with atomic_write(origins_of(output), "wb") as origins:
                copy_origins(connection, files, Path(origins.name))
    read = [group for file in files for group in file.read]
    texts_read = [group.columns["text"] for group in read]
    return {
        "missing_columns": missing,
        "rows": sum(group.end_row - group.first_row for file in files for group in file.groups),
        "row_groups": sum(len(file.groups) for file in files),
        "row_groups_read": len(read),
        "rows_read": selection.kept + selection.dropped.total(),
        "dropped": {reason: selection.dropped[reason] for reason in REMEDIES},
        "kept": selection.kept,
        "text_bytes": selection.bytes,
        "compressed_text_bytes_read": sum(chunk.stop - chunk.start for chunk in texts_read),
        "stopped": stopped,
    }


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB without network and with little memory.

    With one thread, the file that it writes is the same each time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": f"{MEMORY}B",
        "temp_directory": str(folder / ".duckdb"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute("set enable_progress_bar = false")
        yield connection


@contextlib.contextmanager
def explain_errors(address: str, output: Path) -> Iterator[None]:
    """Turn DuckDB's errors into this project's: a damaged file, a full disk, too little memory."""
    try:
        yield
    except (MemoryError, duckdb.Error) as error:
        if isinstance(error, MemoryError) or "Out of Memory Error" in str(error):
            raise ShortOfMemory(
                f"{address}: this machine has too little free memory for its row groups; "
                "end other programs, or give a file with smaller row groups"
            ) from error
        if os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output)) from error
        problem = re.sub("/dev/fd/[0-9]+", address, str(error).splitlines()[0])
        raise Damaged(
            f"{address}: damaged, or not a parquet file ({problem}); "
            "correct the address, or fetch it again"
        ) from error


def give_memory(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Parquet], address: str
) -> None:
    """Let DuckDB hold the largest column of text of a row group, as it is stored and as it is read.

    Raises `ShortOfMemory` where the machine has not so much.
    """
    chunks = [group.columns["text"] for file in files for group in file.groups]
    largest = max((chunk.stop - chunk.start + chunk.size for chunk in chunks), default=0)
    free = free_memory()
    if largest > MEMORY and free < largest:
        raise ShortOfMemory(
            f"{address}: reading its largest row group takes {largest / 1e9:.1f} GB of memory, and "
            f"this machine has {free / 1e9:.1f} GB free; "
            "end other programs, or give a file with smaller row groups"
        )
    connection.execute(f"set memory_limit = '{MEMORY + largest}B'")


def describe(connection: duckdb.DuckDBPyConnection, file: Parquet, address: str) -> None:
    """Read the columns and row groups of `file` from its footer."""
    described = connection.execute(
        f"describe select * exclude (file_row_number) from {file.source}"
    ).fetchall()
    types = {name: kind for name, kind, *_ in described}
    if types.get("text") != "VARCHAR":
        if "text" in types:
            problem = f"its column text holds {types['text']}"
        else:
            problem = f"it has no column text (only {', '.join(types)})"
        raise Damaged(f"{address}: {problem}; give a parquet file with a column text of strings")
    file.columns = list(types)
    file.groups = read_row_groups(connection, file.handle or file.path)
    for number, group in enumerate(file.groups):
        if absent := [name for name in file.wanted if name not in group.columns]:
            raise duckdb.Error(f"row group {number} lacks the column {absent[0]}")
        text = group.columns["text"]
        if text.size > most_unpacked(text.stop - text.start):
            raise Damaged(
                f"{address}: row group {number} unpacks to {text.size:,} bytes, over "
                f"{MOST_INFLATION} times its size, as no text does; correct the address"
            )


def select_pages(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[Parquet],
    selection: Selection,
    output: IO[bytes],
    index: IO[bytes],
) -> str:
    """Read row groups until the budget is used up, write the kept pages and note their rows.

    Returns why it stopped: "budget" or "end".
    """
    budget = selection.filters.max_bytes_per_shard
    text = sum(group.columns["text"].size for file in files for group in file.groups)
    with log.Progress("fineweb", min(budget, text), "MB", 1e-6) as progress:
        for file in files:
            for group in file.groups:
                if group.first_row == group.end_row:
                    continue
                reach = selection.bytes + group.columns["text"].size
                if selection.kept and reach > OVERSHOOT * budget:
                    return "budget"
                file.fetch(group, file.wanted)
                file.read.append(group)
                before = selection.bytes
                texts, pages = look_at(connection, file, group, selection.filters)
                kept = np.zeros(len(texts), bool)
                for row, page in enumerate(pages):
                    if page is None:
                        selection.dropped[NOT_UTF8] += 1
                        continue
                    kept[row] = selection.keep(page)
                    if selection.full:
                        break
                file.kept += (kept + ord("0")).astype(np.uint8).tobytes()
                output.writelines(texts.take(kept).runs())
                hashes = [page.sha256 for page in itertools.compress(pages, kept) if page]
                index.write(index_entries(texts.sizes[kept], hashes, before).data)
                progress.update(selection.bytes - before, kept=selection.kept)
                if selection.full:
                    return "budget"
    return "end"


def look_at(
    connection: duckdb.DuckDBPyConnection, file: Parquet, group: RowGroup, filters: Filters
) -> tuple[Batch, list[Page | None]]:
    """Return the texts of a row group and their labels, lengths and hashes.

    A label that the file lacks gets the value that its filter asks for. A row that is not UTF-8 has
    an empty text and no page.
    """

    def label(name: str, kind: str, otherwise: object) -> str:
        if name in file.columns:
            return f"try_cast({name} as {kind})"
        return f"{quoted(otherwise)}::{kind}"

    def read() -> tuple[list[tuple[Any, ...]], Batch]:
        rows = rows_of(file, *group[:2])
        labels = connection.execute(
            f"""
            select {label("language", "varchar", filters.language)},
                   {label("language_score", "double", filters.min_language_score)},
                   {label("int_score", "double", filters.min_score)} {rows}
            """
        ).fetchall()
        return labels, read_texts(connection, f"select encode(coalesce(text, '')) {rows}")

    try:
        labels, texts = read()
    except duckdb.Error as error:
        if not is_not_utf8(error):
            raise
        bad = bad_rows(connection, file.source, file.wanted, *group[:2], len(file.bad))
        file.bad += bad
        labels, texts = read()
    if len(texts) != len(labels):
        raise duckdb.Error("the columns of a row group differ in length")
    characters, blank = measure(texts)
    columns = characters, texts.sizes.tolist(), texts.hashes(), blank
    pages: list[Page | None] = [
        Page(*known, *seen) for known, *seen in zip(labels, *columns, strict=True)
    ]
    for row in file.bad:
        if row >= group.first_row:
            pages[row - group.first_row] = None
    return texts, pages


def measure(texts: Batch) -> tuple[list[int], list[bool]]:
    """Return the characters of each text, and whether it is blank.

    A blank text has only spaces, tabs and line ends, or nothing.
    """
    # bytes 0x80 to 0xBF: every byte of a character but its first
    continuations = np.flatnonzero(texts.text.view(np.int8) < -64)
    before_start = np.searchsorted(continuations, texts.starts)
    before_stop = np.searchsorted(continuations, texts.stops)
    characters = texts.sizes - before_stop + before_start
    return characters.tolist(), [
        not document[:1].tobytes().strip(BLANK) and not document.tobytes().strip(BLANK)
        for document in texts.documents()
    ]


def read_texts(connection: duckdb.DuckDBPyConnection, query: str) -> Batch:
    """Return the result of `query`, one column of texts as bytes, which so are not decoded."""
    return Batch.of([text for (text,) in connection.execute(query).fetchall()])


def rows_of(file: Parquet, first: int, end: int) -> str:
    """Return SQL from "from" on for rows of a file; those that are not UTF-8 are null."""
    bad = [row for row in file.bad if first <= row < end]
    if not bad:
        return f"from {file.source} {between(first, end)}"
    wanted = ", ".join(file.wanted)
    nulls = "select null::varchar as " + ", null as ".join(file.wanted)
    parts = []
    for row in [*bad, end]:
        if first < row:
            parts.append(f"select {wanted} from {file.source} {between(first, row)}")
        if row < end:
            parts.append(nulls)
        first = row + 1
    return f"from ({' union all '.join(parts)})"


def index_entries(sizes: np.ndarray, hashes: Sequence[bytes], before: int) -> np.ndarray:
    """Return pages (PAGE) for the index, whose texts follow `before` bytes of others."""
    pages = np.empty(len(sizes), PAGE)
    pages["end"] = before + np.cumsum(sizes)
    pages["sha256"] = np.frombuffer(b"".join(hashes), "V32")
    return pages


def copy_origins(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Parquet], output: Path
) -> None:
    """Write id and url of the kept rows, in their order, from parquet to parquet."""
    parts = []
    for number, file in enumerate(files):
        if not file.kept:
            continue
        connection.execute(f"set variable kept_{number} = ?::bit", [file.kept.decode()])
        page_id = f"{quoted(file.name + ':')} || file_row_number"
        if "id" in file.columns:
            page_id = f"coalesce(nullif(id::varchar, ''), {page_id})"
        url = "coalesce(url::varchar, '')" if "url" in file.columns else "''"
        parts += [
            f"select {page_id} as id, {url} as url from {file.source} {between(first, end)} "
            f"and case when file_row_number < {len(file.kept)} "
            f"then get_bit(getvariable('kept_{number}'), file_row_number::int) = 1 "
            "else false end"
            for first, end in spans(0, file.read[-1].end_row, file.bad)
        ]
    query, place = " union all ".join(parts), quoted(os.path.abspath(output))
    connection.execute(
        f"copy ({query}) to {place} (format parquet, compression zstd, use_tmp_file false)"
    )
