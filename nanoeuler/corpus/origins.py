"""Where a document of a corpus is from.

    train/<source>.origins.json   the source's files in the order in which they were read, each with
                                  its number of documents; of books id, title and author
    <split>/<source>.numbers      the number in that order of each document of the corpus

Pages and documents of JSON lines have an id and an address, in the file beside their texts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.corpus.extracted_pages import origins_of
from nanoeuler.errors import UserError
from nanoeuler.storage.files import MOST_LINES, explain_os_errors, read_json, read_lines
from nanoeuler.storage.integrity import Origin, check_file


class DocumentOrigin(NamedTuple):
    """What is known of a document of a corpus; what is not is empty."""

    source: str
    number: int
    """Of all documents of the source that were read, from 0."""
    title: str = ""
    author: str = ""
    address: str = ""
    """A URL, or the file that it was read from."""
    licence: str = ""
    part: int | None = None
    """Of a file with several documents, which one of them it is, from 0."""


class Origins:
    """The origins of a corpus's documents, by the corpus's manifest."""

    def __init__(self, path: Path):
        self.path, self.manifest = path, read_json(path)
        self.files: dict[str, list[dict[str, Any]]] = {}

    def of(self, split: str, source: str, document: int) -> DocumentOrigin:
        """The origin of document `document` of a source in a split of the corpus.

        Raises `UserError` where the corpus has no record of it.
        """
        text, document = self.text_of(split, source, document)
        number = int(self.numbers(text)[document])
        licence = self.manifest["sources"][source].get("licence") or ""
        part = number
        for entry in self.entries(text["origins"]):
            if part < entry["documents"]:
                break
            part -= entry["documents"]
        else:
            raise UserError(f"{self.path.parent / text['origins']}: has no file of {number}")
        found = DocumentOrigin(
            source,
            number,
            entry.get("title", ""),
            entry.get("author", ""),
            entry["file"],
            licence,
            part if entry["documents"] > 1 else None,
        )
        if entry.get("pages"):
            page = page_origin(Path(entry["file"]), part)
            url, page_id = page.get("url"), page.get("id")
            found = found._replace(address=url) if url else found._replace(title=page_id or "")
        return found

    def text_of(self, split: str, source: str, document: int) -> tuple[Mapping[str, Any], int]:
        """The entry of the text that has the document, and its number in that text."""
        entry = self.manifest["sources"][source][split]
        for text in entry.get("groups", [entry]):
            if document < text["documents"]:
                if "origins" not in text:
                    raise UserError(
                        f"{self.path}: does not say where its documents are from; "
                        "run `nanoeuler assemble` again"
                    )
                return text, document
            document -= text["documents"]
        raise UserError(f"{self.path}: has fewer documents of {source} than its tokens")

    def numbers(self, text: Mapping[str, Any]) -> np.ndarray:
        """The numbers of a text's documents among those that were read, uint32 (documents,)."""
        path = self.path.parent / text["numbers"]
        remedy = f"delete {self.path} and run it again"
        check_file(path, text["numbers_sha256"], Origin("`nanoeuler assemble`", remedy))
        return np.memmap(path, "<u4", mode="r", shape=(text["documents"],))

    def entries(self, name: str) -> list[dict[str, Any]]:
        if name not in self.files:
            self.files[name] = read_json(self.path.parent / name)
        return self.files[name]


def page_origin(text: Path, number: int) -> dict[str, Any]:
    """Id and url of a page of the file `text` (extracted_pages.py), empty if they are gone."""
    parquet, lines = origins_of(text), text.with_suffix(".jsonl")
    if lines.is_file():
        for row, line in enumerate(read_lines(lines, MOST_LINES)):
            if row == number:
                found: dict[str, Any] = json.loads(line)
                return found
    if parquet.is_file():
        import duckdb  # takes long to import

        from nanoeuler.corpus.parquet_files import between, named, reading

        with explain_os_errors(parquet), named(parquet) as name, duckdb.connect() as connection:
            rows = reading(name, "file_row_number = true")
            query = f"select id, url from {rows} {between(number, number + 1)}"
            for page_id, url in connection.execute(query).fetchall():
                return {"id": page_id, "url": url}
    return {}
