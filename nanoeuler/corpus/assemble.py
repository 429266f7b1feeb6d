"""All sources of a corpus into its training and validation text.

    data/corpora/<name>/manifest.json                                  written last: what there is, hashes, licences, what was dropped
    data/corpora/<name>/{train,validation}/<source>.txt                the documents' UTF-8 bytes, one after another with nothing between
    data/corpora/<name>/{train,validation}/<source>.offsets            little-endian uint64, one more than documents: i is bytes offsets[i]:offsets[i+1]

Documents go from file to file by the batch: a corpus may be larger than the memory. Three passes are made over each source. The first decides
what is held out and what repeats something else (survey.py), the second writes the held-out text, and the third the training text, less what
quotes an evaluation set or the held-out text of any source (contamination.py). Threads share the batches; the result is the same for any number of them.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.contamination import GRAM, NONE, Measured, hash_grams, read_evaluation_set
from nanoeuler.corpus.document_sources import Source
from nanoeuler.corpus.split import check_share, cut_end
from nanoeuler.corpus.survey import COPY, HELD_OUT, NEAR_COPY, TRAIN, Part, Survey, survey
from nanoeuler.corpus.words import hash_words
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_folder, canonical_json, sha256_file, sha256_text, write_json

SPLITS = ("train", "validation")
HELD_OUT_TEXT = "held-out text"  # its name among the sets that training documents may quote


@dataclass(frozen=True)
class Cleaning:
    """What is dropped from a corpus.

    `duplicates` says for each kind of source (web, books, own_text) which repetitions are: near (and exact) ones, exact ones or none. With
    `decontaminate`, training documents that quote held-out text, or one of `evaluation_sets` (files of JSON lines, by name), are dropped.
    """

    duplicates: Mapping[str, str] = field(default_factory=dict)
    threshold: float = 0.8
    decontaminate: bool = False
    evaluation_sets: Mapping[str, Path] = field(default_factory=dict)


NOTHING = Cleaning()


def assemble(
    output: str | Path, name: str, sources: Sequence[Source], validation_share: float, cleaning: Cleaning = NOTHING, threads: int = 1
) -> dict[str, Any]:
    """Write the corpus `name` to the folder `output` and return its manifest.

    Raises `UserError` if a source can't be read, has no text, or too little to hold some out. An older corpus stays until the new one is whole;
    other files in `output` (tokenizers, tokens) are left alone.
    """
    check_share(validation_share)
    if threads < 1:
        raise UserError(f"--threads is {threads}: it must be at least 1")
    output = Path(output)
    for stale in output.glob(".*.part"):  # of an attempt that was killed
        shutil.rmtree(stale, ignore_errors=True)
    surveys = [survey(source, validation_share, cleaning.duplicates.get(source.kind, "none"), cleaning.threshold, threads) for source in sources]
    with atomic_folder(output / SPLITS[0]) as train, atomic_folder(output / SPLITS[1]) as validation:
        held_out = [write_validation(found, validation, validation_share, cleaning.decontaminate, threads) for found in surveys]
        tests = [(test, hash_grams(*hash_words(*read_evaluation_set(path)))) for test, path in cleaning.evaluation_sets.items() if cleaning.decontaminate]
        measured = Measured([*((HELD_OUT_TEXT, grams) for _, grams in held_out), *tests])
        entries = {}
        for found, (part, grams) in zip(surveys, held_out, strict=True):
            # A document whose end is held out does not quote that end.
            others = Measured([*((HELD_OUT_TEXT, other) for _, other in held_out if other is not grams), *tests]) if found.ends else measured
            entries[found.source.name] = describe(found) | write_training(found, train, others, threads) | {"validation": part}
        (output / "manifest.json").unlink(missing_ok=True)  # it must not describe files that are being exchanged
    manifest = {
        "version": 1,
        "name": name,
        "validation_share": validation_share,
        "deduplicate": {**cleaning.duplicates, "threshold": cleaning.threshold},
        "decontaminate": {test: sha256_file(path) for test, path in cleaning.evaluation_sets.items()} if cleaning.decontaminate else None,
        "sources": entries,
        "documents": {split: sum(entry[split]["documents"] for entry in entries.values()) for split in SPLITS},
        "bytes": {split: sum(entry[split]["bytes"] for entry in entries.values()) for split in SPLITS},
        "fingerprint": fingerprint(entries),
    }
    write_json(output / "manifest.json", manifest)
    return manifest


def fingerprint(entries: dict[str, dict[str, Any]]) -> str:
    """Over the sources' names and hashes, in their order: equal corpora, borders of documents included, have equal fingerprints."""
    hashes = [[name, split, entry[split]["sha256"], entry[split]["offsets_sha256"]] for name, entry in entries.items() for split in SPLITS]
    return sha256_text(canonical_json(hashes))


def describe(found: Survey) -> dict[str, Any]:
    """The beginning of a source's entry in the manifest."""
    entry = {"licence": found.source.licence, "split": "ends of documents" if found.ends else "documents", "read": found.count(*range(4))}
    if found.source.left_out:
        entry["left_out"] = found.source.left_out
    return entry


def write_validation(found: Survey, folder: Path, share: float, measure: bool, threads: int) -> tuple[dict[str, Any], np.ndarray]:
    """Write a source's held-out text into `folder`. Returns what the manifest says of it and, with `measure`, the hashes of its runs of words.

    Where the ends of documents are held out, `found.cuts` learns here where they begin.
    """
    source = found.source

    def work(part: Part) -> tuple[Batch, np.ndarray]:
        if not found.ends and not (part.fates == HELD_OUT).any():
            return Batch.of([]), np.zeros(0, np.uint64)
        batch = part.read()
        if found.ends:
            for document in np.flatnonzero(part.fates == TRAIN):
                part.cuts[document] = find_cut(bytes(batch.document(document)), share, source.name)
        wanted = np.flatnonzero((part.fates == HELD_OUT) | (found.ends & (part.fates == TRAIN)))
        held_out = batch.pieces(wanted, part.cuts[wanted], part.sizes[wanted])
        return held_out, hash_grams(*hash_words(held_out.text, held_out.offsets)) if measure else np.zeros(0, np.uint64)

    hashes = [np.zeros(0, np.uint64)]
    with PartWriter(folder, source.name) as writer, log.Progress(f"hold out {source.name}", int(found.sizes.sum()), "MB", 1e-6) as progress:
        for size, (held_out, grams) in ordered_map(lambda part: (int(part.sizes.sum()), work(part)), found.parts(), threads):
            writer.add(held_out)
            hashes.append(grams)
            progress.update(size)
    return writer.entry(SPLITS[1]), np.concatenate(hashes)


def find_cut(text: bytes, share: float, source: str) -> int:
    """Where the held-out end of a document begins."""
    if not (cut := cut_end(text, share)):
        raise UserError(f"corpus source {source}: {len(text)} bytes are too little text to hold some out for validation; add to it")
    return cut


def write_training(found: Survey, folder: Path, measured: Measured, threads: int) -> dict[str, Any]:
    """Write a source's training text, less the documents that quote a set of `measured`, into `folder`. Returns what the manifest says of both."""
    source = found.source

    def work(part: Part) -> tuple[Batch, np.ndarray, np.ndarray]:
        wanted = np.flatnonzero(part.fates == TRAIN)
        batch = part.read().pieces(wanted, np.zeros(len(wanted), np.int64), part.cuts[wanted])
        quoted = measured.find(*hash_words(batch.text, batch.offsets)) if measured.names else np.full(len(batch), NONE, np.uint8)
        return batch.take(quoted == NONE), quoted, batch.sizes

    documents, sizes = np.zeros(NONE + 1, np.int64), np.zeros(NONE + 1, np.int64)  # by the set that is quoted
    with PartWriter(folder, source.name) as writer, log.Progress(f"assemble {source.name}", int(found.sizes.sum()), "MB", 1e-6) as progress:
        for size, (batch, quoted, bytes_of) in ordered_map(lambda part: (int(part.sizes.sum()), work(part)), found.parts(), threads):
            writer.add(batch)
            documents += np.bincount(quoted, minlength=NONE + 1)
            sizes += np.bincount(quoted, bytes_of, NONE + 1).astype(np.int64)
            progress.update(size)
    contaminated = {test: {"documents": int(documents[index]), "bytes": int(sizes[index])} for index, test in enumerate(measured.names)}
    if not writer.documents:
        counts = ", ".join(f"{test} {count['documents']:,}" for test, count in contaminated.items())
        raise UserError(
            f"corpus source {source.name}: no training text is left, as every document has {GRAM} words in a row in common with what models are "
            f"measured on ({counts}); set corpus.decontaminate to false, or add to the source"
        )
    dropped = {"exact duplicates": found.count(COPY), "near duplicates": found.count(NEAR_COPY), "contaminated": contaminated}
    held_out = found.count(TRAIN if found.ends else HELD_OUT)["documents"]
    told = {"duplicates": found.count(COPY, NEAR_COPY)["documents"], "contaminated": int(documents[:NONE].sum())}
    log.line("source", name=source.name, documents=writer.documents, bytes=writer.bytes, held_out=held_out, **told)
    return {"dropped": dropped, "train": writer.entry(SPLITS[0])}


class PartWriter(contextlib.AbstractContextManager):
    """One source's part of one split: the text and the documents' borders, hashed on the way. Use as a context manager."""

    def __init__(self, folder: Path, source: str):
        self.source = source
        self.documents = self.bytes = 0
        self.text_hash, self.offsets_hash = hashlib.sha256(), hashlib.sha256()
        self.text_file = open(folder / f"{source}.txt", "wb")  # noqa: SIM115 - closed by __exit__
        self.offsets_file = open(folder / f"{source}.offsets", "wb")  # noqa: SIM115
        self.write_offsets(np.zeros(1, np.int64))

    def add(self, batch: Batch) -> None:
        self.text_file.write(batch.text)
        self.text_hash.update(batch.text)
        self.write_offsets(self.bytes + batch.offsets[1:])
        self.documents += len(batch)
        self.bytes += len(batch.text)

    def write_offsets(self, offsets: np.ndarray) -> None:
        raw = offsets.astype("<u8").tobytes()
        self.offsets_file.write(raw)
        self.offsets_hash.update(raw)

    def __exit__(self, *_: object) -> None:
        self.text_file.close()
        self.offsets_file.close()

    def entry(self, split: str) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "sha256": self.text_hash.hexdigest(),
            "offsets_sha256": self.offsets_hash.hexdigest(),
            "text": f"{split}/{self.source}.txt",
            "offsets": f"{split}/{self.source}.offsets",
        }
