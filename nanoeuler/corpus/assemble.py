"""Assemble all sources of a corpus into its training and validation text.

    data/corpora/<name>/
        manifest.json                         written last: files, hashes, licences, dropped text
        {train,validation}/<source>.txt       the UTF-8 bytes of the documents, nothing between them
        {train,validation}/<source>.offsets   little-endian uint64, one more than documents:
                                              number i is bytes offsets[i]:offsets[i+1]

Documents are read and written in batches, so that a corpus may be larger than the memory. Hashes
decide first which documents are held out and which are copies (survey.py). Then all texts are read
to find near-duplicates and quotations of evaluation sets and held-out text (cleaning.py), and once
more to be written. Threads share the batches; the result does not depend on their number.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.cleaning import examine, look_at_held_out, near_duplicates
from nanoeuler.corpus.contamination import (
    GRAM,
    NO_RUNS,
    NONE,
    Measured,
    Quotations,
    hash_runs,
    read_evaluation_set,
)
from nanoeuler.corpus.document_sources import OWN_TEXT, Source
from nanoeuler.corpus.split import check_share
from nanoeuler.corpus.survey import COPY, HELD_OUT, NEAR_COPY, QUOTING, TRAIN, Part, Survey, survey
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.errors import UserError
from nanoeuler.files import canonical_json, read_json, sha256_file, sha256_text, write_json
from nanoeuler.folders import atomic_folder, files_in, require_ours, sign_of_ours, write_marker
from nanoeuler.temporary import sweep

SPLITS = ("train", "validation")
HELD_OUT_TEXT = "held-out text"  # its name among the sets that training documents may quote


@dataclass(frozen=True)
class Cleaning:
    """The settings of what is dropped from a corpus.

    `duplicates` says for each kind of source (web, books, own_text) whether near (and exact)
    duplicates, exact ones or none are dropped. With `decontaminate`, training documents that quote
    held-out text or one of `evaluation_sets` (files of JSON lines, by name) are dropped.
    """

    duplicates: Mapping[str, str] = field(default_factory=dict)
    threshold: float = 0.8
    decontaminate: bool = False
    evaluation_sets: Mapping[str, Path] = field(default_factory=dict)


NOTHING = Cleaning()


def assemble(
    output: str | Path,
    name: str,
    sources: Sequence[Source],
    validation_share: float,
    cleaning: Cleaning = NOTHING,
    threads: int = 1,
) -> dict[str, Any]:
    """Write the corpus `name` to the folder `output` and return its manifest.

    Raises `UserError` if a source cannot be read, has no text, or too little to hold some out. An
    older corpus stays until the new one is complete; other files in `output` (tokenizers, tokens)
    are left alone.
    """
    check_share(validation_share)
    if threads < 1:
        raise UserError(f"--threads is {threads}: it must be at least 1")
    output = Path(output)
    require_corpus(output)
    sweep(output)
    modes = [cleaning.duplicates.get(source.kind, "none") for source in sources]
    surveys = [
        survey(source, validation_share, mode != "none", threads)
        for source, mode in zip(sources, modes, strict=True)
    ]
    quoted, ignored = clean(surveys, modes, validation_share, cleaning, threads)
    with (
        atomic_folder(output / SPLITS[0]) as train,
        atomic_folder(output / SPLITS[1]) as validation,
    ):
        entries = {
            found.source.name: describe(found, counts) | write(found, train, validation, threads)
            for found, counts in zip(surveys, quoted, strict=True)
        }
        # the manifest must not describe files that are being replaced
        (output / "manifest.json").unlink(missing_ok=True)
    evaluation_sets = None
    if cleaning.decontaminate:
        evaluation_sets = {
            name: sha256_file(path) for name, path in cleaning.evaluation_sets.items()
        }
    manifest = {
        "version": 1,
        "name": name,
        "validation_share": validation_share,
        "deduplicate": {**cleaning.duplicates, "threshold": cleaning.threshold},
        "decontaminate": evaluation_sets,
        "frequent_runs_ignored": ignored,
        "sources": entries,
        "documents": {split: total(entries, split, "documents") for split in SPLITS},
        "bytes": {split: total(entries, split, "bytes") for split in SPLITS},
        "fingerprint": fingerprint(entries),
    }
    write_json(output / "manifest.json", manifest)
    return manifest


def require_corpus(output: Path) -> None:
    """Raise `UserError` where the corpus would replace files that are not ours."""
    path = output / "manifest.json"
    if path.exists() and not is_corpus(output):
        raise UserError(
            f"{path}: not the manifest of a corpus, and would be replaced by one; "
            "give the name of a new folder"
        )
    mark_earlier_corpus(output)
    for split in SPLITS:
        require_ours(output / split)


def mark_earlier_corpus(output: Path) -> None:
    """Mark the folders of a corpus that an earlier version made, while it still has a manifest."""
    for folder in (output / split for split in SPLITS):
        names = files_in(folder)
        if names and sign_of_ours(folder) is None and is_corpus(output):
            stems = [name[: -len(".offsets")] for name in names if name.endswith(".offsets")]
            write_marker(
                folder, (stem + suffix for stem in stems for suffix in (".txt", ".offsets"))
            )


def is_corpus(output: Path) -> bool:
    """Whether the folder has the manifest of a corpus."""
    try:
        manifest = read_json(output / "manifest.json")
    except UserError:
        return False
    return isinstance(manifest, dict) and {"sources", "fingerprint"} <= manifest.keys()


def total(entries: dict[str, dict[str, Any]], split: str, counted: str) -> int:
    return sum(entry[split][counted] for entry in entries.values())


def fingerprint(entries: dict[str, dict[str, Any]]) -> str:
    """Hash the sources' names and hashes, in their order.

    Corpora have equal fingerprints if their texts and the borders of their documents are equal.
    """
    hashes = [
        [name, split, entry[split]["sha256"], entry[split]["offsets_sha256"]]
        for name, entry in entries.items()
        for split in SPLITS
    ]
    return sha256_text(canonical_json(hashes))


def clean(
    surveys: Sequence[Survey], modes: Sequence[str], share: float, cleaning: Cleaning, threads: int
) -> tuple[list[dict[str, Any]], int]:
    """Find near-duplicates and quotations, and enter them into the surveys.

    Returns the manifest's counts of each source's quotations, and the number of runs of words that
    were ignored because they are frequent.
    """
    searches = [
        near_duplicates(found, cleaning.threshold) if mode == "near" else None
        for found, mode in zip(surveys, modes, strict=True)
    ]
    checked = cleaning.decontaminate
    held_out = [
        look_at_held_out(found, search, share, checked, threads)
        for found, search in zip(surveys, searches, strict=True)
    ]
    tests = [
        (test, hash_runs(*hash_words(read_evaluation_set(path))))
        for test, path in cleaning.evaluation_sets.items()
        if checked
    ]
    measured = Measured([*((HELD_OUT_TEXT, runs) for runs in held_out if checked), *tests])
    quotations = Quotations(measured)
    borders = np.cumsum([0, *(len(found.fates) for found in surveys)])
    touched = []
    for found, search, first in zip(surveys, searches, borders[:-1], strict=True):
        others = measured
        is_own = found.source.kind == OWN_TEXT
        if checked and (is_own or found.ends):
            # one's own text may repeat itself; a document whose end is held out does not quote it
            of_others = [
                (HELD_OUT_TEXT, runs)
                for other, runs in zip(surveys, held_out, strict=True)
                if other is not found and not (is_own and other.source.kind == OWN_TEXT)
            ]
            others = Measured([(HELD_OUT_TEXT, NO_RUNS), *of_others, *tests])
        touched.append(examine(found, search, others, quotations, int(first), threads))
    owners = quotations.owners(int(borders[-1]))
    told = []
    for found, any_quoted, first in zip(surveys, touched, borders[:-1], strict=True):
        of_source = owners[first : first + len(found.fates)]
        found.fates[of_source != NONE] = QUOTING
        told.append(
            {
                "contaminated": {
                    test: found.count_where(of_source == index)
                    for index, test in enumerate(measured.names)
                },
                "only frequent runs": found.count_where(any_quoted & (of_source == NONE)),
            }
        )
    return told, quotations.ignored


def describe(found: Survey, quoted: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a source's entry in the manifest about what was read and dropped."""
    everything = range(QUOTING + 1)
    entry: dict[str, Any] = {
        "licence": found.source.licence,
        "split": "ends of documents" if found.ends else "documents",
        "read": found.count(*everything),
    }
    if found.source.left_out:
        entry["left_out"] = found.source.left_out
    dropped = {
        "exact duplicates": found.count(COPY),
        "near duplicates": found.count(NEAR_COPY),
        "contaminated": quoted["contaminated"],
    }
    return entry | {
        "dropped": dropped,
        "kept_quoting_only_frequent_runs": quoted["only frequent runs"],
    }


def write(found: Survey, train: Path, validation: Path, threads: int) -> dict[str, Any]:
    """Write a source's texts into the folders of both splits; return their manifest entries."""
    source = found.source

    def work(part: Part) -> tuple[Batch, Batch]:
        batch = part.read()
        if not found.ends:
            return batch.take(part.fates == TRAIN), batch.take(part.fates == HELD_OUT)
        beginnings = batch.cut(np.zeros(len(batch), np.int64), part.cuts)
        ends = batch.cut(part.cuts, part.sizes)
        has_end = np.isin(part.fates, (TRAIN, QUOTING)) & (part.cuts < part.sizes)
        return beginnings.take(part.fates == TRAIN), ends.take(has_end)

    with (
        PartWriter(train, source.name) as trained,
        PartWriter(validation, source.name) as held_out,
        log.Progress(f"write {source.name}", int(found.sizes.sum()), "MB", 1e-6) as progress,
    ):
        for size, (training, rest) in ordered_map(
            lambda part: (int(part.sizes.sum()), work(part)), found.parts(), threads
        ):
            trained.add(training)
            held_out.add(rest)
            progress.update(size)
    if not trained.documents:
        raise UserError(
            f"corpus source {source.name}: no training text is left, "
            f"as every document has {GRAM} words in a row in common with what models are "
            f"measured on ({found.count(QUOTING)['documents']:,} of them); "
            "set corpus.decontaminate to false, or add to the source"
        )
    log.line(
        "source",
        name=source.name,
        documents=trained.documents,
        bytes=trained.bytes,
        held_out=held_out.documents,
        duplicates=found.count(COPY, NEAR_COPY)["documents"],
        contaminated=found.count(QUOTING)["documents"],
    )
    return {"train": trained.entry(SPLITS[0]), "validation": held_out.entry(SPLITS[1])}


class PartWriter(contextlib.AbstractContextManager):
    """Writes and hashes one source's part of one split: the text and the documents' borders."""

    def __init__(self, folder: Path, source: str):
        self.source = source
        self.documents = self.bytes = 0
        self.text_hash, self.offsets_hash = hashlib.sha256(), hashlib.sha256()
        self.text_file = open(folder / f"{source}.txt", "wb")  # noqa: SIM115 - closed by __exit__
        self.offsets_file = open(folder / f"{source}.offsets", "wb")  # noqa: SIM115
        self.writer = ThreadPoolExecutor(1)  # writes what is being hashed
        self.write_offsets(np.zeros(1, np.int64))

    def add(self, batch: Batch) -> None:
        writing = self.writer.submit(self.text_file.writelines, batch.runs())
        for run in batch.runs():
            self.text_hash.update(run)
        writing.result()
        offsets = self.bytes + np.cumsum(batch.sizes)
        self.write_offsets(offsets)
        self.documents += len(batch)
        self.bytes = int(offsets[-1]) if len(batch) else self.bytes

    def write_offsets(self, offsets: np.ndarray) -> None:
        raw = offsets.astype("<u8").tobytes()
        self.offsets_file.write(raw)
        self.offsets_hash.update(raw)

    def __exit__(self, *_: object) -> None:
        self.writer.shutdown()
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
