"""Read the text of a corpus by documents, and take an even sample of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json
from nanoeuler.storage.integrity import Origin, check_file
from nanoeuler.tokenizer.counting import Piece
from nanoeuler.tokenizer.file_bytes import FileBytes
from nanoeuler.tokenizer.parallel import map_in_order
from nanoeuler.tokenizer.pretokenizer import blocks

SAMPLE_BLOCK = 1 << 14  # bytes: a sample takes or skips blocks of about this size


@dataclass(frozen=True)
class CorpusText:
    """Documents of one source in one split: document i is `data[offsets[i]:offsets[i + 1]]`.

    `name` is that of the file: the source's, or that of a group of its documents.
    """

    split: str
    source: str
    name: str
    data: FileBytes
    offsets: np.ndarray  # int64 (documents + 1,)

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    def borders(self) -> Iterator[tuple[int, int]]:
        """Yield start and stop of each document."""
        return pairwise(self.offsets.tolist())


class Corpus:
    """A corpus folder, opened by its manifest. `texts[split]` has the sources in its order.

    With `group`, it has the texts of that group alone; sources without groups belong to group 0.
    """

    def __init__(self, manifest_path: str | Path, group: int | None = None, threads: int = 1):
        self.path = Path(manifest_path)
        manifest = read_json(self.path)
        try:
            self.fingerprint: str = manifest["fingerprint"]
            entries = [
                (split, name, text)
                for split in ("train", "validation")
                for name, source in manifest["sources"].items()
                for number, text in enumerate(source[split].get("groups", [source[split]]))
                if group in (None, number)
            ]
            opened = list(map_in_order(lambda entry: self.open_text(*entry), entries, threads))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.path}: not a corpus manifest ({error!r} is missing or wrong); "
                "run `nanoeuler assemble` again"
            ) from error
        self.texts: dict[str, list[CorpusText]] = {"train": [], "validation": []}
        for text in opened:
            self.texts[text.split].append(text)

    def open_text(self, split: str, source: str, entry: dict) -> CorpusText:
        """Open the files of one source. Raises `UserError` when the manifest does not fit them."""
        text = self.path.parent / entry["text"]
        offsets = self.path.parent / entry["offsets"]
        origin = Origin("`nanoeuler assemble`", f"delete {self.path} and run it again")
        for path, size, sha256 in (
            (text, entry["bytes"], entry.get("sha256")),
            (offsets, 8 * (entry["documents"] + 1), entry.get("offsets_sha256")),
        ):
            if not path.is_file() or path.stat().st_size != size:
                found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no such file"
                raise UserError(
                    f"{path}: {found} where {self.path.name} says {size:,} bytes; "
                    "run `nanoeuler assemble` again"
                )
            check_file(path, sha256, origin)
        borders = np.fromfile(offsets, "<u8").astype(np.int64)  # (documents + 1,)
        if borders[0] != 0 or borders[-1] != entry["bytes"] or (np.diff(borders) <= 0).any():
            raise UserError(
                f"{offsets}: damaged: the offsets do not rise from 0 to the size of {text.name}; "
                "run `nanoeuler assemble` again"
            )
        return CorpusText(split, source, text.stem, FileBytes(text), borders)


def sample(texts: list[CorpusText], wanted: int) -> Iterator[Piece]:
    """Yield about `wanted` bytes, spread evenly over all sources and documents, in their order.

    Documents are cut into blocks where words end. A block is taken whenever the sample has less
    than its share of the source so far. So a long document gives blocks from all its parts, short
    ones are taken whole at regular intervals, and no source is left out. A corpus of no more than
    `wanted` bytes is taken whole.
    """
    total = sum(len(text.data) for text in texts)
    source = None
    for text in texts:
        if text.source != source:  # the groups of a source count as one text
            seen = taken = 0
            source = text.source
        for start, stop in text.borders():
            for low, high in blocks(text.data, start, stop, SAMPLE_BLOCK):
                seen += high - low
                if taken * total < seen * min(wanted, total):
                    taken += high - low
                    yield Piece(text.data, low, high)
