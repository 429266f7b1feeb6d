"""Where a corpus's documents come from: cleaned books, extracted web pages, one's own files.

A source can be read as often as needed, always in the same order and one document at a time: `index()` gives each document's (key, bytes), from which
the split is decided, and `documents()` each document's (key, UTF-8 text). Documents with one key must not be parted (split.py says why).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nanoeuler import log
from nanoeuler.corpus.own_text import find_files, read_documents, slug
from nanoeuler.corpus.split import title_key
from nanoeuler.errors import UserError
from nanoeuler.files import read_json

GUTENBERG, FINEWEB = "gutenberg", "fineweb"
BATCH = 1_000  # rows fetched from parquet at once


class Source(Protocol):
    name: str
    licence: str
    left_out: dict[str, str]  # what is not used of it, and why

    def index(self) -> Iterator[tuple[str, int]]: ...

    def documents(self) -> Iterator[tuple[str, bytes]]: ...


@dataclass
class Books:
    """Cleaned Gutenberg books: text files, each with its record (JSON, written by `gutenberg clean`) beside it.

    A book that its record does not keep is left out and remembered in `left_out`, with the reason. A text without a record is taken as it is.
    """

    paths: Sequence[Path]
    licence: str = ""
    name: str = GUTENBERG
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

    def index(self) -> Iterator[tuple[str, int]]:
        return ((key, path.stat().st_size) for path, key in self.keys.items())

    def documents(self) -> Iterator[tuple[str, bytes]]:
        return ((key, path.read_bytes()) for path, key in self.keys.items())


@dataclass
class WebPages:
    """Web pages in parquet files with a column `text`, as the fineweb stage writes them. A page's key is the sha256 of its text."""

    paths: Sequence[Path]
    licence: str = ""
    name: str = FINEWEB
    left_out: dict[str, str] = field(default_factory=dict)

    def index(self) -> Iterator[tuple[str, int]]:
        return self.select("sha256(text), strlen(text)")

    def documents(self) -> Iterator[tuple[str, bytes]]:
        return self.select("sha256(text), encode(text)")

    def select(self, columns: str) -> Iterator[tuple]:
        import duckdb

        for path in self.paths:
            if not path.is_file():
                raise UserError(f"{path}: no such file; extract it first: nanoeuler fineweb")
            try:
                with duckdb.connect() as connection:
                    query = f"select {columns} from read_parquet(?) where text is not null and trim(text, ' \t\r\n') <> ''"
                    rows = connection.execute(query, [str(path)])
                    while batch := rows.fetchmany(BATCH):
                        yield from batch
            except duckdb.Error as error:
                problem = str(error).splitlines()[0]
                raise UserError(f"{path}: not a readable parquet file with a column text ({problem}); delete it and run the fineweb stage again") from error


@dataclass
class OwnText:
    """One's own .txt and .md files. A file's key is the sha256 of its text (of its first piece, for all pieces of a large file), so that neither
    copies of a file nor its pieces are parted."""

    path: str
    files: Sequence[Path]
    name: str
    licence: str = "own text"
    left_out: dict[str, str] = field(default_factory=dict)

    def index(self) -> Iterator[tuple[str, int]]:
        return ((key, len(text)) for key, text in self.read(say_encoding=True))

    def documents(self) -> Iterator[tuple[str, bytes]]:
        return self.read(say_encoding=False)

    def read(self, say_encoding: bool) -> Iterator[tuple[str, bytes]]:
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
