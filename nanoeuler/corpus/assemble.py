"""Assemble all sources of a corpus into its training and validation text.

    data/corpora/<name>/
        manifest.json                         written last: files, hashes, licences, dropped text
        {train,validation}/<source>.txt       the UTF-8 bytes of the documents, nothing between them
        {train,validation}/<source>.offsets   little-endian uint64, one more than documents:
                                              number i is bytes offsets[i]:offsets[i+1]
        {train,validation}/<source>.numbers   little-endian uint32: which of the source's documents
                                              each is, or is a part of
        train/<source>.origins.json           where those are from, file by file (origins.py)

Documents are read and written in batches, so that a corpus may be larger than the memory. Hashes
decide first which documents are held out and which are copies (survey.py). Then all texts are read
to find near-duplicates and quotations of evaluation sets and held-out text (cleaning.py), and once
more to be written. Threads share the batches; the result does not depend on their number.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.cleaning import Cleaning, look_at
from nanoeuler.corpus.contamination import GRAM
from nanoeuler.corpus.document_sources import Reader
from nanoeuler.corpus.split import check_share
from nanoeuler.corpus.survey import COPY, HELD_OUT, NEAR_COPY, QUOTING, TRAIN, Part, Survey
from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json, read_json, sha256_file, sha256_text, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours
from nanoeuler.storage.spilled import spill_folder
from nanoeuler.storage.temporary import sweep
from nanoeuler.system.machine import check_threads
from nanoeuler.system.threads import ordered_map

SPLITS = ("train", "validation")
NOTHING = Cleaning()
ORIGINS = ".origins.json"


def assemble(
    output: str | Path,
    name: str,
    sources: Sequence[Reader],
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
    check_threads(threads)
    output = Path(output)
    require_corpus(output)
    sweep(output)
    with spill_folder(output) as folder:
        found = look_at(sources, validation_share, cleaning, threads, folder)
        examined = [found.compare(*each, threads) for each in enumerate(found.surveys)]
        told, ignored = found.decide(examined, cleaning.threshold, threads, folder)
        with (
            atomic_folder(output / SPLITS[0]) as train,
            atomic_folder(output / SPLITS[1]) as validation,
        ):
            entries = {
                each.source.name: finish(
                    describe(each, counts),
                    each.source.name,
                    [
                        write(group, stem, train, validation, threads)
                        for stem, group in named_groups(each)
                    ],
                )
                for each, counts in zip(found.surveys, told, strict=True)
            }
            # the manifest must not describe files that are being replaced
            (output / "manifest.json").unlink(missing_ok=True)
    return write_manifest(output, name, validation_share, cleaning, ignored, entries)


def write_manifest(
    output: Path,
    name: str,
    validation_share: float,
    cleaning: Cleaning,
    ignored: int,
    entries: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Write the manifest of the texts in `output`, last: its presence means that all are whole."""
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
    for split in SPLITS:
        require_ours(output / split)


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
        [name, split, text["sha256"], text["offsets_sha256"]]
        for name, entry in entries.items()
        for split in SPLITS
        for text in entry[split].get("groups", [entry[split]])
    ]
    return sha256_text(canonical_json(hashes))


def describe(found: Survey, quoted: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a source's entry in the manifest about what was read and dropped."""
    everything = range(QUOTING + 1)
    entry: dict[str, Any] = {
        "licence": found.source.licence,
        "split": "stretches of documents" if found.parted else "documents",
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


def named_groups(found: Survey) -> list[tuple[str, Survey]]:
    """The surveys of a source's groups, and the names of their texts without a suffix."""
    name, groups = found.source.name, found.groups()
    if len(groups) == 1:
        return [(name, found)]
    return [(f"{name}-{number:03d}", group) for number, group in enumerate(groups)]


def write(
    found: Survey, stem: str, train: Path, validation: Path, threads: int
) -> dict[str, dict[str, Any]]:
    """Write the texts of a source, or a group of it, into the folders of both splits.

    Returns their entries in the manifest.
    """

    def work(part: Part) -> list[tuple[Batch, np.ndarray]]:
        batch = part.read()
        held_out = np.flatnonzero(part.fates == HELD_OUT)
        pieces = [part.trained(batch), (batch.take(held_out), held_out)]
        if found.parted:
            pieces[1] = part.held_out(batch, (TRAIN, QUOTING))
        return [(texts, part.rows.start + numbers) for texts, numbers in pieces]

    with (
        PartWriter(train, stem) as trained,
        PartWriter(validation, stem) as held_out,
        log.Progress(f"write {stem}", int(found.sizes.sum()), "MB", 1e-6) as progress,
    ):
        for size, (training, rest) in ordered_map(
            lambda part: (int(part.sizes.sum()), work(part)), found.parts(), threads
        ):
            trained.add(*training)
            held_out.add(*rest)
            progress.update(size)
    write_json(train / f"{stem}{ORIGINS}", found.source.origins())
    return {"train": trained.entry(SPLITS[0]), "validation": held_out.entry(SPLITS[1])}


def finish(
    entry: dict[str, Any], name: str, written: Sequence[dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    """Return a source's entry in the manifest: `entry`, and what `write` has told of its groups.

    Raises `UserError` where no training text is left.
    """
    for split in SPLITS:
        groups = [texts[split] for texts in written]
        totals = {key: sum(text[key] for text in groups) for key in ("documents", "bytes")}
        entry[split] = totals | {"groups": groups} if len(groups) > 1 else groups[0]
    dropped = entry["dropped"]
    quoting = sum(counts["documents"] for counts in dropped["contaminated"].values())
    if not entry["train"]["documents"]:
        raise UserError(
            f"corpus source {name}: no training text is left, "
            f"as every document has {GRAM} words in a row in common with what models are "
            f"measured on ({quoting:,} of them); "
            "set corpus.decontaminate to false, or add to the source"
        )
    log.line(
        "source",
        name=name,
        documents=entry["train"]["documents"],
        bytes=entry["train"]["bytes"],
        held_out=entry["validation"]["documents"],
        duplicates=sum(
            dropped[kind]["documents"] for kind in ("exact duplicates", "near duplicates")
        ),
        contaminated=quoting,
    )
    return entry


class PartWriter(contextlib.AbstractContextManager):
    """Writes and hashes one source's part of one split: the text and the documents' borders."""

    def __init__(self, folder: Path, source: str):
        self.source = source
        self.documents = self.bytes = 0
        self.text_hash, self.offsets_hash = hashlib.sha256(), hashlib.sha256()
        self.numbers_hash = hashlib.sha256()
        self.text_file = open(folder / f"{source}.txt", "wb")  # noqa: SIM115 - closed by __exit__
        self.offsets_file = open(folder / f"{source}.offsets", "wb")  # noqa: SIM115
        self.numbers_file = open(folder / f"{source}.numbers", "wb")  # noqa: SIM115
        self.writer = ThreadPoolExecutor(1)  # writes what is being hashed
        self.write_offsets(np.zeros(1, np.int64))

    def add(self, batch: Batch, numbers: np.ndarray) -> None:
        """Append documents, whose numbers among those of the source are `numbers`."""
        writing = self.writer.submit(self.text_file.writelines, batch.runs())
        for run in batch.runs():
            self.text_hash.update(run)
        writing.result()
        offsets = self.bytes + np.cumsum(batch.sizes)
        self.write_offsets(offsets)
        raw = numbers.astype("<u4").tobytes()
        self.numbers_file.write(raw)
        self.numbers_hash.update(raw)
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
        self.numbers_file.close()

    def entry(self, split: str) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "sha256": self.text_hash.hexdigest(),
            "offsets_sha256": self.offsets_hash.hexdigest(),
            "text": f"{split}/{self.source}.txt",
            "offsets": f"{split}/{self.source}.offsets",
            "numbers": f"{split}/{self.source}.numbers",
            "numbers_sha256": self.numbers_hash.hexdigest(),
            "origins": f"{SPLITS[0]}/{self.source}{ORIGINS}",
        }
