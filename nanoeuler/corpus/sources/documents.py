"""Documents from the files that tools for curation write: JSON lines or Parquet, plain or packed.

A record has a text and, if the file has them, an id, a url, a language and a score. The texts that
pass the filters are written one after another, with an index (extracted_pages.py), so that a corpus
reads them as it reads web pages.

    nanoeuler documents --config my.yaml --file 0 \\
        --output data/documents/x/file-000.txt --record data/documents/x/file-000.json
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.corpus.addresses import file_bytes
from nanoeuler.corpus.sources.source import (
    Config,
    File,
    Files,
    Option,
    Place,
    Step,
    TextSource,
    filtered,
    find_section,
    with_file,
)
from nanoeuler.errors import UserError
from nanoeuler.storage.section import Name, Reruns, Section, key, optional, section

FILE_BYTES = 1_000_000_000
"""A file whose size the sources file does not say."""
UNPACKED = 3
"""Bytes of text in a byte of a file; most are packed."""
FIELDS = ("id", "text", "url", "language", "score")
WANTED = "an object with a `text`, and if there are some, id, url, language and score"


@section
class Collection(Section):
    """Files of documents."""

    collection: Name = key("name of the folder that the documents are kept in")
    revision: str | None = key("revision of the data set that hf:// addresses mean", default=None)
    title: str = optional("what reports call it", reruns=Reruns.NEVER)
    licence: str = optional("licence of the documents")
    files: list[File] = key(
        "files of JSON lines or Parquet, plain or packed with gzip or Zstandard",
        min_length=1,
        reruns=Reruns.NEVER,
    )


@section
class Part(Section):
    """The documents that are taken."""

    files: int | None = key(
        "number of files, counted from the first in the sources file; null takes all",
        default=None,
        ge=1,
        reruns=Reruns.NEVER,
    )
    language: str | None = key(
        "`language` of a document, such as en; null takes all", default=None, min_length=2
    )
    min_score: float | None = key("lowest `score` of a document; null takes all", default=None)


def written(config: Config, item: str) -> Files:
    return filtered(config, "documents", "files", f"file-{item}", ".jsonl")


def listed(config: Config) -> Sequence[Mapping[str, Any]]:
    """The entries of the files in the sources file."""
    entries: Sequence[Mapping[str, Any]]
    entries = config.get("sources", {}).get("documents", {}).get("files", [])
    return entries


class Documents(TextSource):
    """Documents; an item is a file, the three digits of its number in the sources file."""

    name = title = kind = "documents"
    entries = Collection
    meaning = "documents in files of JSON lines or Parquet"
    repetitions = ("in documents, across all files", "near")
    option = Option("--documents", "TXT", "extracted documents, each with its index beside it", str)
    settings = Part
    settings_meaning = "the documents that are taken of files of documents"

    def __init__(self) -> None:
        self.steps = (
            Step(
                rule="extract_documents",
                command="documents",
                message="Extracting the documents of file {wildcards.item}",
                run=extract,
                options=(
                    Option("--file", "N", "number of the file in the sources file, from 0", int),
                    Option(
                        "--output",
                        "FILE",
                        "file of texts to write; their index and origins (id, url) come beside it",
                    ),
                    Option("--record", "FILE", "JSON file to write: what was read and dropped"),
                ),
                values=lambda config, item: {"file": item},
                outputs=written,
                sections="corpus.documents and sources.documents",
                reads=(
                    "corpus.documents",
                    "sources.documents.collection",
                    "sources.documents.revision",
                    "sources.documents.files",
                ),
                entry=lambda config, item: with_file(config, listed(config)[int(item)]),
                pattern=r"\d{3,6}",
                heavy=True,
            ),
        )

    def items(self, config: Config) -> list[str]:
        if not self.is_taken(config):
            return []
        wanted = config["corpus"][self.name]["files"]
        return [f"{number:03d}" for number in range(len(listed(config)))][:wanted]

    def download_bytes(self, config: Config, item: str) -> float | None:
        return file_bytes(listed(config)[int(item)])

    def text_bytes(self, config: Config, item: str) -> float:
        return UNPACKED * (self.download_bytes(config, item) or FILE_BYTES)

    def most_bytes(self, config: Config) -> float:
        return max((self.text_bytes(config, item) for item in self.items(config)), default=0)

    def learned(self, config: Config) -> Iterable[Mapping[str, Any]]:
        return listed(config)

    def language(self, config: Config) -> str | None:
        wanted: str | None = config.get("corpus", {}).get(self.name, {}).get("language")
        return wanted

    def check(self, config: Config, place: Place) -> None:
        wanted, there = config["corpus"][self.name]["files"], len(listed(config))
        if self.is_taken(config) and wanted is not None and wanted > there:
            place.refuse(
                ("corpus", self.name, "files"),
                f"is {wanted}, but the sources file lists {there}; add files there",
            )

    def reader(
        self, paths: Sequence[Path], licence: str, settings: Config, group: int | None
    ) -> Any:
        from nanoeuler.corpus.document_sources import WebPages

        return WebPages(paths, licence, self.name, self.kind)


def extract(config: Config, file: int, output: Path, record: Path) -> dict[str, Any]:
    """Write the documents of a file that pass the filters, their index and origins, and a record.

    Raises `UserError` when the file cannot be read, when more than half of its records have no
    text, or when no document is left.
    """
    from nanoeuler import log
    from nanoeuler.corpus.download import SourceFile, local_copy
    from nanoeuler.corpus.extracted_pages import index_of
    from nanoeuler.corpus.record_files import Faults, read_records
    from nanoeuler.storage.files import atomic_write, explain_os_errors, sha256_file, write_json

    section = find_section(config, "sources.documents")
    part = Part.read(config.get("corpus", {}).get("documents", {}))
    source = SourceFile.numbered(section, "files", file)
    faults = Faults(source.url)
    dropped: Counter[str] = Counter()
    total = kept = end = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    index_of(output).unlink(missing_ok=True)  # it must not describe another text
    with (
        explain_os_errors(output),
        local_copy(source, output) as copy,
        atomic_write(index_of(output), "wb") as index,
        atomic_write(output.with_suffix(".jsonl")) as origins,
        atomic_write(output, "wb") as texts,
        log.Progress("documents", None, "MB", 1e-6) as progress,
    ):
        for where, value in read_records(copy.path, source.url, FIELDS):
            total += 1
            if problem := fault(value):
                faults.add(where, problem)
                continue
            if reason := reason_to_drop(value, part):
                dropped[reason] += 1
                continue
            text = value["text"].encode()
            kept, end = kept + 1, end + len(text)
            texts.write(text)
            index.write(end.to_bytes(8, "little") + hashlib.sha256(text).digest())
            origin = {"id": value.get("id") or f"{file}:{total}", "url": value.get("url") or ""}
            origins.write(json.dumps(origin, default=str) + "\n")
            progress.update(len(text), kept=kept)
        bad = faults.counts
        faults.tell(total, total - bad.total(), "are bad", f"give records with {WANTED}")
        if not kept:
            told = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common())
            raise UserError(
                f"{source.url}: no document passes the filters, which drop: {told}; "
                "loosen corpus.documents"
            )
        revision, sha256 = copy.revision, copy.sha256
    facts = {
        "version": 1,
        "file": file,
        "url": source.url,
        "revision": revision,
        "licence": section.get("licence"),
        "source_sha256": sha256,
        "filters": {"language": part.language, "min_score": part.min_score},
        "read": total,
        "bad": dict(bad),
        "dropped": dict(dropped),
        "kept": kept,
        "text_bytes": end,
        "sha256": sha256_file(index_of(output)),
    }
    write_json(record, facts)
    log.line("documents", file=file, read=total, kept=kept, bad=bad.total(), text_bytes=end)
    return facts


def fault(value: Any) -> str | None:
    """Why a record is no document, or None."""
    if not isinstance(value, Mapping):
        return "no JSON object"
    text = value.get("text")
    if text is None:
        return "no text"
    if not isinstance(text, str):
        return "text is not text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text is not Unicode"
    return None if text.strip() else "text is empty"


def reason_to_drop(document: Mapping[str, Any], part: Part) -> str | None:
    """The filter that a document does not pass, or None."""
    if part.language is not None and document.get("language") != part.language:
        return "language"
    if part.min_score is not None:
        score = document.get("score")
        if not isinstance(score, int | float) or not score >= part.min_score:  # or NaN
            return "score"
    return None


SOURCE = Documents()
