"""Where a corpus's documents come from: cleaned books, extracted web pages, one's own files.

A source can be read as often as needed, always in the same order and a batch at a time: `batches()` gives functions that each read one, so
that several can be read at once. Documents with one key must not be parted (split.py says why).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nanoeuler import log
from nanoeuler.corpus import batches
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.own_text import find_files, read_documents, slug
from nanoeuler.corpus.split import title_key
from nanoeuler.errors import UserError
from nanoeuler.files import read_json

if TYPE_CHECKING:
    import duckdb

    from nanoeuler.corpus.parquet_ranges import RowGroup

GUTENBERG, FINEWEB = "gutenberg", "fineweb"


class Source(Protocol):
    name: str
    kind: str  # the key of corpus.deduplicate that speaks of it
    licence: str
    left_out: dict[str, str]  # what is not used of it, and why

    def size(self) -> int:
        """About how many bytes of text there are."""

    def batches(self) -> Iterator[Callable[[], Batch]]: ...


@dataclass
class Books:
    """Cleaned Gutenberg books: text files, each with its record (JSON, written by `gutenberg clean`) beside it.

    A book that its record does not keep is left out and remembered in `left_out`, with the reason. A text without a record is taken as it is.
    """

    paths: Sequence[Path]
    licence: str = ""
    name: str = GUTENBERG
    kind: str = "books"
    left_out: dict[str, str] = field(default_factory=dict)
    keys: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.paths:
            if not path.is_file():
                raise UserError(f"{path}: no such file; clean the book first: nanoeuler gutenberg clean")
            record_path = path.with_suffix(".json")
            record = read_json(record_path) if record_path.exists() else {"kept": True}
            if not record.get("kept", True):
                self.left_out[path.stem] = record.get("reason") or "not kept"
            elif path.stat().st_size == 0:
                raise UserError(f"{path}: empty; delete it and clean the book again: nanoeuler gutenberg clean")
            else:
                self.keys[path] = title_key(record.get("title", "")) or path.stem

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.keys)

    def batches(self) -> Iterator[Callable[[], Batch]]:
        paths: list[Path] = []
        size = 0
        for path in self.keys:
            paths.append(path)
            size += path.stat().st_size
            if size >= batches.SIZE:
                yield partial(self.read, tuple(paths))
                paths, size = [], 0
        if paths:
            yield partial(self.read, tuple(paths))

    def read(self, paths: Sequence[Path]) -> Batch:
        return Batch.of([path.read_bytes() for path in paths], [self.keys[path] for path in paths])


@dataclass
class WebPages:
    """Web pages in parquet files with a column `text`, as the fineweb stage writes them. A page's key is the sha256 of its text."""

    paths: Sequence[Path]
    licence: str = ""
    name: str = FINEWEB
    kind: str = "web"
    left_out: dict[str, str] = field(default_factory=dict)

    def size(self) -> int:
        return sum(group.columns["text"].size for _, _, groups in self.row_groups() for group in groups)

    def batches(self) -> Iterator[Callable[[], Batch]]:
        """Row groups, small ones together."""
        for connection, path, groups in self.row_groups():
            first = size = 0
            for group in groups:
                size += group.columns["text"].size
                if size >= batches.SIZE or group is groups[-1]:
                    yield partial(self.read, connection.cursor(), path, first, group.end_row)
                    first, size = group.end_row, 0

    def row_groups(self) -> "Iterator[tuple[duckdb.DuckDBPyConnection, Path, list[RowGroup]]]":
        import duckdb

        from nanoeuler.corpus.parquet_ranges import read_row_groups

        connection = duckdb.connect(config={"threads": 1})  # a query keeps to the thread that asks
        for path in self.paths:
            if not path.is_file():
                raise UserError(f"{path}: no such file; extract it first: nanoeuler fineweb")
            try:
                connection.execute("select text from read_parquet(?) limit 0", [str(path)])
                yield connection, path, read_row_groups(connection, path)
            except duckdb.Error as error:
                raise damaged(path, error) from error

    def read(self, connection: "duckdb.DuckDBPyConnection", path: Path, first: int, end: int) -> Batch:
        import duckdb

        from nanoeuler.corpus.arrow_text import read_texts

        file = "'" + str(path).replace("'", "''") + "'"
        rows = f"file_row_number >= {first} and file_row_number < {end}"
        try:
            return read_texts(connection, f"select text from read_parquet({file}, file_row_number = true) where {rows} and ltrim(text, ' \t\r\n') <> ''")
        except duckdb.Error as error:
            raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    problem = str(error).splitlines()[0]
    return UserError(f"{path}: not a readable parquet file with a column text ({problem}); delete it and run the fineweb stage again")


@dataclass
class OwnText:
    """One's own .txt and .md files. A file's key is the sha256 of its text (of its first piece, for all pieces of a large file), so that neither
    copies of a file nor its pieces are parted."""

    path: str
    files: Sequence[Path]
    name: str
    licence: str = "own text"
    kind: str = "own_text"
    left_out: dict[str, str] = field(default_factory=dict)
    encoding_said: bool = False

    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def batches(self) -> Iterator[Callable[[], Batch]]:
        documents: list[bytes] = []
        keys: list[str] = []
        size = 0
        for key, text in self.read():
            documents.append(text)
            keys.append(key)
            size += len(text)
            if size >= batches.SIZE:
                yield partial(Batch.of, documents, keys)
                documents, keys, size = [], [], 0
        if documents:
            yield partial(Batch.of, documents, keys)

    def read(self) -> Iterator[tuple[str, bytes]]:
        say_encoding, self.encoding_said = not self.encoding_said, True  # once, however often the files are read
        for file in self.files:
            key = None
            for document in read_documents(file, say_encoding):
                text = document.encode("utf-8", "replace")
                key = key or hashlib.sha256(text).hexdigest()
                yield key, text


def choose_sources(named: Sequence[str], books: Sequence[str], fineweb: Sequence[str], own: Sequence[str], licences: dict[str, str]) -> list[Source]:
    """The sources of a corpus, in the order of `named` (the configuration's `corpus.sources`).

    Where that names no own text, the paths in `own` come last; where it does, `own` adds nothing: it may list the very files that a folder
    in it holds. With nothing named: what is given, books first. A file belongs to the first source that finds it. Raises `UserError`
    where the names and what is given don't fit together.
    """
    given = {GUTENBERG: bool(books), FINEWEB: bool(fineweb)}
    named = list(dict.fromkeys(named)) or [name for name in given if given[name]]
    for name, present in given.items():
        if present and name not in named:
            raise UserError(f"corpus.sources does not name {name}, but files of it were given; add it there or leave them out")
        if not present and name in named:
            raise UserError(f"corpus.sources names {name}, but no files of it were given; give them with --{'books' if name == GUTENBERG else name}")
    sources: list[Source] = []
    names, taken = set(given), set()
    own_is_named = any(name not in given for name in named)
    for entry in dict.fromkeys([*named, *([] if own_is_named else own)]):
        if entry == GUTENBERG:
            sources.append(Books([Path(path) for path in dict.fromkeys(books)], licences.get(GUTENBERG, "")))
        elif entry == FINEWEB:
            sources.append(WebPages([Path(path) for path in dict.fromkeys(fineweb)], licences.get(FINEWEB, "")))
        else:
            files = [file for file in find_files(entry) if file.resolve() not in taken]
            if not files:
                raise UserError(f"{entry}: all its files belong to sources named before it; take it out of corpus.sources")
            taken.update(file.resolve() for file in files)
            sources.append(OwnText(entry, files, unused(slug(entry), names)))
    if not sources:
        raise UserError("no text to build a corpus of; name gutenberg, fineweb or a path of your own in corpus.sources")
    for path in own:
        if own_is_named and Path(path).resolve() not in taken and path not in named:
            log.line("text", f"{path} was left out: corpus.sources names other files; add it there")
    return sources


def unused(name: str, names: set[str]) -> str:
    """`name`, with a number behind it if it is in `names` already; adds it there."""
    candidate, number = name, 2
    while candidate in names:
        candidate, number = f"{name}-{number}", number + 1
    names.add(candidate)
    return candidate
