"""Where a document of a corpus is from.

    train/<source>.origins.json   the source's files in the order in which they were read, each with
                                  its number of documents; of books id, title and author
    <split>/<source>.numbers      the number in that order of each document of the corpus

Pages and documents of JSON lines have an id and an address, in the file beside their texts.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nanoeuler.corpus.extracted_pages import origins_of
from nanoeuler.corpus.record_files import read_records
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json
from nanoeuler.storage.integrity import Origin, check_file

Text: TypeAlias = Mapping[str, Any]
"""The manifest's entry of a text: the documents of a source in a split, or of a group of them."""


class DocumentOrigin(NamedTuple):
    """What is known of a document of a corpus; what is not is empty."""

    source: str
    number: int
    """Its index among all documents of the source that were read, from 0."""
    title: str
    author: str
    address: str
    """A URL, or the file that it was read from."""
    licence: str
    part: int | None
    """Its index within a file of several documents, from 0."""


class Origins:
    """The origins of a corpus's documents, by the corpus's manifest."""

    def __init__(self, path: Path):
        self.path, self.manifest = path, read_json(path)
        self.files: dict[str, list[dict[str, Any]]] = {}

    def of(self, split: str, source: str, document: int) -> DocumentOrigin:
        """The origin of document `document` of a source in a split of the corpus.

        Raises `UserError` where the corpus has no record of it.
        """
        before = 0
        for text in self.texts(split, source):
            if document < text["documents"]:
                return self.origin(source, text, int(self.numbers(text)[document]), before)
            document -= text["documents"]
            before += sum(entry["documents"] for entry in self.entries(text))
        raise UserError(f"{self.path}: has fewer documents of {source} than its tokens")

    def called(self, name: str) -> list[tuple[DocumentOrigin, list[int]]]:
        """The documents that are called `name`: a title, an address, the name of a file, or
        "SOURCE:NUMBER". With each come its numbers in the source's text for training: several
        where stretches of it are held out, none where all of it is.
        """
        found: list[tuple[DocumentOrigin, list[int]]] = []
        for source in self.manifest["sources"]:
            first = before = 0
            for text in self.texts("train", source):
                numbers = self.numbers(text)
                for number in self.matching(text, name, f"{source}:", before):
                    rows = first + np.flatnonzero(numbers == number)
                    found.append((self.origin(source, text, number, before), rows.tolist()))
                first += text["documents"]
                before += sum(entry["documents"] for entry in self.entries(text))
        return found

    def matching(self, text: Text, name: str, source: str, before: int) -> list[int]:
        """The numbers of the documents that `called` looks for, in one text."""
        first, found = 0, list[int]()
        for entry in self.entries(text):
            path = Path(entry["file"])
            if name in (entry.get("title"), str(path), path.name, path.stem):
                found += range(first, first + entry["documents"])
            elif entry.get("pages"):
                listed = enumerate(pages(path), first)
                found += [number for number, known in listed if name in known]
            first += entry["documents"]
        wanted = name.removeprefix(source)
        if wanted != name and wanted.isdecimal() and before <= int(wanted) < before + first:
            found.append(int(wanted) - before)
        return found

    def origin(self, source: str, text: Text, number: int, before: int) -> DocumentOrigin:
        """The origin of document `number` of a text, before which the source has `before`."""
        part = number
        for entry in self.entries(text):
            if part < entry["documents"]:
                break
            part -= entry["documents"]
        else:
            raise UserError(f"{self.path.parent / text['origins']}: has no file of {number}")
        found = DocumentOrigin(
            source,
            before + number,
            entry.get("title", ""),
            entry.get("author", ""),
            entry["file"],
            self.manifest["sources"][source].get("licence") or "",
            part if entry["documents"] > 1 else None,
        )
        if entry.get("pages"):
            for page_id, url in pages(Path(entry["file"]))[part : part + 1]:
                found = found._replace(address=url) if url else found._replace(title=page_id)
        return found

    def texts(self, split: str, source: str) -> list[Text]:
        """The entries of a source's texts in the manifest."""
        entry = self.manifest["sources"][source][split]
        texts: list[Text] = entry.get("groups", [entry])
        if any("origins" not in text for text in texts):
            raise UserError(
                f"{self.path}: does not say where its documents are from; "
                "run `nanoeuler assemble` again"
            )
        return texts

    def numbers(self, text: Text) -> np.ndarray:
        """The numbers of a text's documents among those that were read, uint32 (documents,)."""
        path = self.path.parent / text["numbers"]
        remedy = f"delete {self.path} and run it again"
        check_file(path, text["numbers_sha256"], Origin("`nanoeuler assemble`", remedy))
        return np.memmap(path, "<u4", mode="r", shape=(text["documents"],))

    def entries(self, text: Text) -> list[dict[str, Any]]:
        name = text["origins"]
        if name not in self.files:
            self.files[name] = read_json(self.path.parent / name)
        return self.files[name]


@functools.cache
def pages(text: Path) -> list[tuple[str, str]]:
    """Id and URL of each page of the file `text` (extracted_pages.py); none if they are gone."""
    listed = [path for path in (origins_of(text), text.with_suffix(".jsonl")) if path.is_file()]
    return [
        (str(record.get("id") or ""), str(record.get("url") or ""))
        for path in listed
        for _, record in read_records(path, str(path), ("id", "url"))
    ]
