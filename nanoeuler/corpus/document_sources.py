"""Read the documents of a corpus: cleaned books, extracted web pages, one's own files.

A source can be read as often as needed, always in the same order and in the same batches.
`batches()` yields functions that read one batch each, so that several can be read at once;
`outlines()` yields functions that describe its documents. Documents are known by their numbers, so
every later reading is compared with the first one: a file that has changed is refused by name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus import batches
from nanoeuler.corpus.batches import Batch, gathered
from nanoeuler.corpus.characters import comparable
from nanoeuler.corpus.extracted_pages import count_pages, read_index, read_pages
from nanoeuler.corpus.gutenberg import join_lines
from nanoeuler.corpus.packed_files import UnfitText
from nanoeuler.corpus.split import position, title_key
from nanoeuler.corpus.text_files import (
    JSON_LINES,
    RECORDS,
    TEXTS,
    USUAL,
    Reading,
    kind_of,
    read_parts,
)
from nanoeuler.errors import UserError
from nanoeuler.storage.files import explain_os_errors, read_json

OWN_TEXT = "own_text"
ESCAPE = "surrogateescape"  # a book's bytes come back as they were, if they are UTF-8 or not
PLAIN = (*TEXTS, JSON_LINES)
UNPACKED = 3  # bytes of text for one of a packed file, about
MOST_NAMED = 50  # files that cannot be read, in one error


class Outline(NamedTuple):
    """The documents of a batch without their texts."""

    positions: np.ndarray  # uint64: in the order of holding out (split.py)
    sizes: np.ndarray  # int64: bytes
    identities: np.ndarray  # uint64: the first bits of the SHA-256 of the text as it is compared
    seen: np.ndarray  # uint64: the same of the text as it is


def positions_of(keys: Sequence[str]) -> np.ndarray:
    return np.fromiter(map(position, keys), np.uint64, len(keys))


def identities_of(sha256s: bytes) -> np.ndarray:
    """Return the first 64 bits (uint64) of each of the SHA-256, which follow one another."""
    return np.frombuffer(sha256s, ">u8").reshape(-1, 4)[:, 0].astype(np.uint64)


def outline_of(read: Callable[[], Batch]) -> Outline:
    batch = read()
    assert batch.keys is not None
    seen = identities_of(b"".join(batch.hashes()))
    identities = seen.copy()
    for number, document in enumerate(map(bytes, batch.documents())):
        if not document.isascii():
            sha256 = hashlib.sha256(comparable(document))
            identities[number] = identities_of(sha256.digest())[0]
    return Outline(positions_of(batch.keys), batch.sizes, identities, seen)


def require_seen(seen: np.ndarray | None, first: int, identities: np.ndarray, file: Path) -> None:
    """Raise `UserError` unless documents `first` and following of `file` are as first `seen`."""
    if seen is not None and not np.array_equal(seen[first : first + len(identities)], identities):
        raise changed(file)


def changed(file: Path) -> UserError:
    return UserError(
        f"{file}: changed while the corpus was being made, so that text could be both held out and "
        "trained on; run again when nothing writes to it (of a corpus in steps, from hold_out on)"
    )


class Reader(ABC):
    """A reader of the documents of a source."""

    name: str
    kind: str  # its key in corpus.deduplicate
    licence: str
    left_out: dict[str, str]  # unused part → the reason
    seen: np.ndarray | None  # the identities of all documents as they were first read

    @abstractmethod
    def size(self) -> int:
        """Return about how many bytes of text there are."""

    @abstractmethod
    def batches(self) -> Iterator[Callable[[], Batch]]: ...

    def outlines(self) -> Iterator[Callable[[], Outline]]:
        return (partial(outline_of, read) for read in self.batches())

    @abstractmethod
    def origins(self) -> list[dict[str, Any]]:
        """Where the documents are from, in their order, once they were read: see origins.py."""

    def groups(self) -> Sequence[tuple["Reader", int]]:
        """Return the groups of files that are written apart, and their numbers of documents.

        There are none where everything is written to one file.
        """
        return []


@dataclass
class Books(Reader):
    """Cleaned Gutenberg books: text files, each with a JSON record of `gutenberg clean` beside it.

    A book that its record does not keep goes to `left_out`, with the reason. The key of a book is
    its title. With `join`, each paragraph of prose becomes one line (gutenberg.py); otherwise
    texts are used unchanged.
    """

    paths: Sequence[Path]
    licence: str = ""
    join: bool = False
    name: str = "gutenberg"
    kind: str = "books"
    left_out: dict[str, str] = field(default_factory=dict)
    keys: dict[Path, str] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    records: dict[Path, dict[str, Any]] = field(default_factory=dict)
    seen: np.ndarray | None = None

    def __post_init__(self) -> None:
        for path in self.paths:
            if not path.is_file():
                raise UserError(
                    f"{path}: no such file; clean the book first: nanoeuler gutenberg clean"
                )
            record_path = path.with_suffix(".json")
            record: dict[str, Any] = read_json(record_path) if record_path.exists() else {}
            if not record.get("kept", True):
                self.left_out[path.stem] = record.get("reason") or "not kept"
            elif path.stat().st_size == 0:
                raise UserError(
                    f"{path}: empty; delete it and clean the book again: nanoeuler gutenberg clean"
                )
            else:
                self.sizes[path] = path.stat().st_size
                self.keys[path] = title_key(record.get("title", "")) or path.stem
                self.records[path] = record

    def size(self) -> int:
        return sum(self.sizes.values())

    def origins(self) -> list[dict[str, Any]]:
        return [
            {"file": str(path), "documents": 1}
            | {key: record[key] for key in ("id", "title", "author") if record.get(key)}
            for path, record in self.records.items()
        ]

    def batches(self) -> Iterator[Callable[[], Batch]]:
        first = 0
        for paths in gathered(self.keys, self.sizes.__getitem__):
            yield partial(self.read, first, paths)
            first += len(paths)

    def read(self, first: int, paths: Sequence[Path]) -> Batch:
        texts = []
        for number, path in enumerate(paths, first):
            with explain_os_errors(path):
                text = path.read_bytes() if path.exists() else b""
            if self.join:
                text = join_lines(text.decode("utf-8", ESCAPE)).encode("utf-8", ESCAPE)
            texts.append(text)
            require_seen(self.seen, number, identities_of(hashlib.sha256(texts[-1]).digest()), path)
        return Batch.of(texts, [self.keys[path] for path in paths])


@dataclass
class WebPages(Reader):
    """Web pages and other documents in the layout of extracted_pages.py, by their files of texts.

    The key of a page is the sha256 of its text. With `group`, the pages of so many files each are
    written apart.
    """

    paths: Sequence[Path]
    licence: str = ""
    name: str = "fineweb"
    kind: str = "web"
    left_out: dict[str, str] = field(default_factory=dict)
    group: int | None = None
    seen: np.ndarray | None = None
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)  # sizes, times of change

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths if path.is_file())

    def origins(self) -> list[dict[str, Any]]:
        return [
            {"file": str(path), "documents": count_pages(path), "pages": True}
            for path in self.paths
        ]

    def groups(self) -> Sequence[tuple[Reader, int]]:
        if self.group is None or self.group >= len(self.paths):
            return []
        found = [
            replace(self, paths=self.paths[first : first + self.group], group=None, seen=None)
            for first in range(0, len(self.paths), self.group)
        ]
        return [(source, sum(map(count_pages, source.paths))) for source in found]

    def outlines(self) -> Iterator[Callable[[], Outline]]:
        for _, _, pages, sizes in self.runs():
            yield partial(outline_of_pages, pages, sizes)

    def batches(self) -> Iterator[Callable[[], Batch]]:
        for path, start, _, sizes in self.runs():
            offsets = start + np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
            yield partial(read_pages, path, offsets, self.name)

    def runs(self) -> Iterator[tuple[Path, int, np.ndarray, np.ndarray]]:
        """Yield the pages of each batch: file, offset in it, rows of the index, sizes."""
        number = 0
        for path in self.paths:
            pages = read_index(path, self.name)
            self.require_stamp(path)
            require_seen(self.seen, number, identities_of(pages["sha256"].tobytes()), path)
            number += len(pages)
            ends = pages["end"].astype(np.int64)
            sizes = np.diff(ends, prepend=0)
            first = start = 0
            while first < len(pages):
                end = int(np.searchsorted(ends, start + batches.SIZE)) + 1
                yield path, start, pages[first:end], sizes[first:end]
                first = end
                start = int(ends[min(end, len(ends)) - 1])
            self.require_stamp(path)

    def require_stamp(self, path: Path) -> None:
        """Raise `UserError` if the texts at `path` were written after they were first read."""
        status = path.stat()
        stamp = status.st_size, status.st_mtime_ns
        if self.stamps.setdefault(path, stamp) != stamp:
            raise changed(path)


def outline_of_pages(pages: np.ndarray, sizes: np.ndarray) -> Outline:
    sha256s = pages["sha256"].tobytes()
    digits = sha256s.hex()
    keys = [digits[start : start + 64] for start in range(0, len(digits), 64)]
    identities = identities_of(sha256s)  # of the text as it is: it need not be read
    return Outline(positions_of(keys), sizes, identities, identities)


@dataclass
class OwnText(Reader):
    """One's own files of text.

    The key of a document is the sha256 of its text as it is compared (characters.py). All pieces
    of a large file have the key of the first, so that they stay on one side of the split.
    """

    path: str
    files: Sequence[Path]
    name: str
    notices: Sequence[str] = ()  # of files that were left out
    reading: Reading = USUAL
    licence: str = "own text"
    kind: str = OWN_TEXT
    left_out: dict[str, str] = field(default_factory=dict)
    read_before: bool = False
    seen: np.ndarray | None = None
    ends: dict[Path, int] = field(default_factory=dict)  # documents up to the end of each file

    def size(self) -> int:
        return sum(
            file.stat().st_size * (1 if file.suffix.lower() in PLAIN else UNPACKED)
            for file in self.files
            if file.exists()
        )

    def origins(self) -> list[dict[str, Any]]:
        ends = [0, *(self.ends[file] for file in self.files if file in self.ends)]
        read = [file for file in self.files if file in self.ends]
        return [
            {"file": str(file), "documents": last - first}
            for file, first, last in zip(read, ends, ends[1:], strict=False)
        ]

    def batches(self) -> Iterator[Callable[[], Batch]]:
        for some in gathered(self.read(), lambda each: len(each[1])):
            keys, documents = zip(*some, strict=True)
            yield partial(Batch.of, documents, keys)

    def read(self) -> Iterator[tuple[str, bytes]]:
        aloud = not self.read_before  # once, however often the files are read
        self.read_before = True
        number = 0
        for notice in self.notices if aloud else ():
            log.line("text", notice)
        unfit: list[str] = []
        for file in self.files:
            key, before = None, number
            try:
                for continues, document in read_parts(file, self.reading, aloud):
                    text = document.encode("utf-8", "replace")
                    sha256 = hashlib.sha256(text)
                    require_seen(self.seen, number, identities_of(sha256.digest()), file)
                    if not (continues and key):
                        key = hashlib.sha256(comparable(text)).hexdigest()
                    number += 1
                    yield key, text
            except UnfitText as error:
                if self.seen is not None:
                    raise
                unfit.append(str(error))
                continue
            if number == before:
                self.left_out[str(file)] = "blank"
            if self.ends.setdefault(file, number) != number:
                raise changed(file)
        if unfit:
            raise all_unfit(unfit)
        if not number and self.seen is None:
            if any(kind_of(file) in RECORDS and file.stat().st_size for file in self.files):
                raise UserError(
                    f"{self.path}: none of its records has a `text`; rename the field that holds it"
                )
            raise UserError(f"{self.path}: empty; leave it out or put text into it")
        if self.left_out and aloud:
            log.line(
                "text", f"{self.path}: left out {log.counted(len(self.left_out), 'blank file')}"
            )
        if self.seen is not None and number != len(self.seen):
            raise changed(self.files[-1])


def all_unfit(problems: Sequence[str]) -> UserError:
    """One error that names all files that cannot be read."""
    if len(problems) == 1:
        return UserError(problems[0])
    named = "\n  ".join(problems[:MOST_NAMED])
    more = f"\n  and {len(problems) - MOST_NAMED:,} more" if len(problems) > MOST_NAMED else ""
    return UserError(f"{len(problems):,} files cannot be read as text:\n  {named}{more}")
