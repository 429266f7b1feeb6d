"""All sources of a corpus into its training and validation text.

    data/corpora/<name>/manifest.json                                  written last: what there is, hashes, licences
    data/corpora/<name>/{train,validation}/<source>.txt                the documents' UTF-8 bytes, one after another with nothing between
    data/corpora/<name>/{train,validation}/<source>.offsets            little-endian uint64, one more than documents: i is bytes offsets[i]:offsets[i+1]

Documents go from file to file one at a time: a corpus may be larger than the memory. Two passes are made over each source, the first one
for the documents' keys and sizes, by which split.py decides what is held out.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.document_sources import Source
from nanoeuler.corpus.split import check_share, cut_end, last_held_out_place, place
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_folder, canonical_json, sha256_text, write_json

SPLITS = ("train", "validation")


def assemble(output: str | Path, name: str, sources: Sequence[Source], validation_share: float) -> dict[str, Any]:
    """Write the corpus `name` to the folder `output` and return its manifest.

    Raises `UserError` if a source can't be read, has no text, or too little to hold some out. An older corpus stays until the new one is whole;
    other files in `output` (tokenizers, tokens) are left alone.
    """
    check_share(validation_share)
    output = Path(output)
    for stale in output.glob(".*.part"):  # of an attempt that was killed
        shutil.rmtree(stale, ignore_errors=True)
    with atomic_folder(output / SPLITS[0]) as train, atomic_folder(output / SPLITS[1]) as validation:
        entries = {source.name: write_source(source, (train, validation), validation_share) for source in sources}
        (output / "manifest.json").unlink(missing_ok=True)  # it must not describe files that are being exchanged
    manifest = {
        "version": 1,
        "name": name,
        "validation_share": validation_share,
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


def write_source(source: Source, folders: tuple[Path, Path], share: float) -> dict[str, Any]:
    """Write one source's two parts into the folders of the splits; return its entry in the manifest."""
    total = 0

    def counted() -> Iterator[tuple[str, int]]:
        nonlocal total
        with log.Progress(f"index {source.name}", None, "MB", 1e-6) as progress:
            for key, size in source.index():
                total += size
                progress.update(size)
                yield key, size

    last = last_held_out_place(counted(), share)
    if not total:
        reasons = f" ({'; '.join(f'{which}: {why}' for which, why in source.left_out.items())})" if source.left_out else ""
        raise UserError(f"corpus source {source.name}: no text is left{reasons}; loosen its filters, add to it, or take it out of corpus.sources")
    with (
        PartWriter(folders[0], source.name) as train,
        PartWriter(folders[1], source.name) as validation,
        log.Progress(f"assemble {source.name}", total, "MB", 1e-6) as progress,
    ):
        for key, text in source.documents():
            if last is not None:
                (validation if place(key) <= last else train).add(text)
            else:
                if not (cut := cut_end(text, share)):
                    raise UserError(f"corpus source {source.name}: {len(text)} bytes are too little text to hold some out for validation; add to it")
                train.add(text[:cut])
                validation.add(text[cut:])
            progress.update(len(text))
    log.line("source", name=source.name, documents=train.documents, bytes=train.bytes, held_out=validation.documents, held_out_bytes=validation.bytes)
    entry = {"licence": source.licence, "split": "ends of documents" if last is None else "documents"}
    if source.left_out:
        entry["left_out"] = source.left_out
    return entry | {"train": train.entry("train"), "validation": validation.entry("validation")}


class PartWriter(contextlib.AbstractContextManager):
    """One source's part of one split: the text and the documents' borders, hashed on the way. Use as a context manager."""

    def __init__(self, folder: Path, source: str):
        self.source = source
        self.documents = self.bytes = 0
        self.text_hash, self.offsets_hash = hashlib.sha256(), hashlib.sha256()
        self.text_file = open(folder / f"{source}.txt", "wb")  # noqa: SIM115 - closed by __exit__
        self.offsets_file = open(folder / f"{source}.offsets", "wb")  # noqa: SIM115
        self.write_offset()

    def add(self, text: bytes) -> None:
        self.text_file.write(text)
        self.text_hash.update(text)
        self.documents += 1
        self.bytes += len(text)
        self.write_offset()

    def write_offset(self) -> None:
        offset = self.bytes.to_bytes(8, "little")
        self.offsets_file.write(offset)
        self.offsets_hash.update(offset)

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
