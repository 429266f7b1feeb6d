"""The text of a corpus: read it by documents, cut it where words end, take an even sample of it.

Memory holds a few blocks of text, however long the corpus or one of its documents is.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json
from nanoeuler.storage.integrity import Origin, check_file, check_size
from nanoeuler.system.threads import ordered_map
from nanoeuler.tokenizer.scanner import CLASSES, find_cut

SAMPLE_BLOCK = 1 << 14  # bytes: a sample takes or skips blocks of about this size
CHUNK = 1 << 20  # bytes that a thread encodes at a time
WINDOW = 1 << 9  # bytes that are searched for a cut in one call
AHEAD = 3  # chunks submitted per thread, which differ in the time that they take


class FileBytes:
    """A file that is read like a sequence of bytes, from any number of threads.

    Unlike a memory map, bytes that were read do not count as this process's memory afterwards.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        self.size = os.fstat(self.file.fileno()).st_size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> bytes:
        start, stop, _ = wanted.indices(self.size)
        content = os.pread(self.file.fileno(), stop - start, start) if start < stop else b""
        while len(content) < stop - start:  # one call reads 2 GiB at most
            more = os.pread(self.file.fileno(), stop - start - len(content), start + len(content))
            if not more:
                raise UserError(
                    f"{self.path}: it became shorter while it was read; "
                    "run this again once nothing writes to it"
                )
            content += more
        return content


class Offsets:
    """The offsets of the documents of a text, each read from its file when it is asked for."""

    def __init__(self, path: Path):
        self.data = FileBytes(path)

    def __len__(self) -> int:
        return len(self.data) // 8

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(self.data[8 * index : 8 * index + 8], "little")


class Piece(NamedTuple):
    """The text `data[start:stop]`, which begins and ends between words."""

    data: bytes | FileBytes
    start: int
    stop: int


@dataclass(frozen=True)
class CorpusText:
    """Documents of one source in one split: document i is `data[offsets[i]:offsets[i + 1]]`.

    `name` is that of the file: the source's, or that of a group of its documents.
    """

    split: str
    source: str
    name: str
    data: FileBytes
    offsets: Any  # int64 (documents + 1,), or `Offsets`
    sha256: str | None = None  # of the text, where it has not been compared

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    def borders(self) -> Iterator[tuple[int, int]]:
        """Yield start and stop of each document."""
        return pairwise(self.offsets.tolist())


class Corpus:
    """A corpus folder, opened by its manifest. `texts[split]` has the sources in its order.

    With `group`, it has the texts of that group alone; sources without groups belong to group 0.
    With `sampled` and more text than that for training, it has that text alone, of which no byte
    has been read: who encodes it finds out whether it has changed. With `unread`, who reads the
    texts compares them with their hashes.
    """

    def __init__(
        self,
        manifest_path: str | Path,
        group: int | None = None,
        threads: int = 1,
        sampled: int | None = None,
        unread: bool = False,
    ):
        self.path = Path(manifest_path)
        self.origin = Origin("`nanoeuler assemble`", f"delete {self.path} and run it again")
        manifest = read_json(self.path)
        try:
            self.fingerprint: str = manifest["fingerprint"]
            numbered = [
                (number, (split, name, text))
                for split in ("train", "validation")
                for name, source in manifest["sources"].items()
                for number, text in enumerate(source[split].get("groups", [source[split]]))
            ]
            entries = [each for number, each in numbered if group in (None, number)]
            if not entries and numbered:
                raise UserError(
                    f"--group {group}: {self.path} has no such group; give a number from 0 to "
                    f"{max(number for number, _ in numbered)}"
                )
            if sampled is not None:
                entries = [each for each in entries if each[0] == "train"]
            size = sum(text["bytes"] for _, _, text in entries)
            whole = sampled is None or size <= sampled
            opened = list(
                ordered_map(lambda entry: self.open_text(*entry, whole, unread), entries, threads)
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.path}: not a corpus manifest ({error!r} is missing or wrong); "
                "run `nanoeuler assemble` again"
            ) from error
        self.texts: dict[str, list[CorpusText]] = {"train": [], "validation": []}
        for text in opened:
            self.texts[text.split].append(text)

    def open_text(
        self, split: str, source: str, entry: dict, whole: bool, unread: bool
    ) -> CorpusText:
        """Open the files of one source, and read them if `whole`, but not the text if `unread`.

        Raises `UserError` when the manifest does not fit them.
        """
        text = self.path.parent / entry["text"]
        offsets = self.path.parent / entry["offsets"]
        for path, size, sha256 in (
            (text, entry["bytes"], entry.get("sha256")),
            (offsets, 8 * (entry["documents"] + 1), entry.get("offsets_sha256")),
        ):
            check_size(path, size, self.path, "run `nanoeuler assemble` again")
            if whole and not (unread and path == text):
                check_file(path, sha256, self.origin)
        if not whole:
            return CorpusText(split, source, text.stem, FileBytes(text), Offsets(offsets))
        borders = np.fromfile(offsets, "<u8").astype(np.int64)  # (documents + 1,)
        if borders[0] != 0 or borders[-1] != entry["bytes"] or (np.diff(borders) <= 0).any():
            raise damaged_offsets(offsets, text)
        sha256 = entry.get("sha256") if unread else None
        return CorpusText(split, source, text.stem, FileBytes(text), borders, sha256)


def damaged_offsets(offsets: Path, text: Path) -> UserError:
    return UserError(
        f"{offsets}: damaged: the offsets do not rise from 0 to the size of {text.name}; "
        "run `nanoeuler assemble` again"
    )


def sample(texts: Sequence[CorpusText], wanted: int) -> Iterator[Piece]:
    """Yield about `wanted` bytes in pieces of documents, in the order of the text.

    A corpus of no more than `wanted` bytes is taken whole. Else each source gives its share, in
    stretches of about `SAMPLE_BLOCK` bytes that begin at even distances, whatever the documents
    are: nothing else of the text is read, and of the offsets those around a stretch.
    """
    total = sum(len(text.data) for text in texts)
    if total <= wanted:
        for text in texts:
            for start, stop in text.borders():
                for low, high in blocks(text.data, start, stop, SAMPLE_BLOCK):
                    yield Piece(text.data, low, high)
        return
    for _, of_source in groupby(texts, lambda text: text.source):
        parts = list(of_source)  # the groups of a source count as one text
        ends = list(accumulate(len(part.data) for part in parts))
        share = ends[-1] * wanted / total
        stretches = max(1, round(share / SAMPLE_BLOCK))
        length = math.ceil(share / stretches)
        taken = 0  # end of the last stretch, which a long word may have moved
        for number in range(stretches):
            start = max(taken, ends[-1] * number // stretches)
            stop = start + length
            for part in range(bisect_right(ends, start), len(parts)):
                first = ends[part] - len(parts[part].data)
                for piece in stretch(parts[part], max(start - first, 0), stop - first):
                    yield piece
                    taken = first + piece.stop
                if stop <= ends[part]:
                    break


def stretch(text: CorpusText, start: int, stop: int) -> Iterator[Piece]:
    """Yield what documents have of the bytes [start, stop), cut where words end."""
    document = bisect_right(text.offsets, start) - 1
    while start < min(stop, len(text.data)):
        begin = end = -1
        if 0 <= document < text.documents:
            begin, end = int(text.offsets[document]), int(text.offsets[document + 1])
        if not 0 <= begin <= start < end <= len(text.data):
            raise damaged_offsets(text.data.path.with_suffix(".offsets"), text.data.path)
        low = start if start == begin else safe_cut(text.data, start, end)
        high = end if end <= stop else safe_cut(text.data, max(low, stop), end)
        if low < high:
            yield Piece(text.data, low, high)
        start, document = end, document + 1


def blocks(data: bytes | FileBytes, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut `data[start:stop]` into blocks of about `size` bytes; yields start and stop of each.

    The words of all blocks together are the words of the whole.
    """
    while start < stop:
        end = safe_cut(data, start + size, stop)
        yield start, end
        start = end


def safe_cut(data: bytes | FileBytes, position: int, stop: int) -> int:
    """Return the first offset from `position` on where a word is sure to end; `stop` if none is.

    `scanner.find_cut` says when the end of a word does not depend on the text around it.
    """
    while position < stop:
        window = np.frombuffer(data[position : min(position + WINDOW, stop)], np.uint8)
        found, at = find_cut(window, position + len(window) == stop, CLASSES)
        if found:
            return position + at
        position += at
    return stop


class Chunk(NamedTuple):
    """Bytes [start, stop) of one text: some documents, or a piece of a long one."""

    split: str
    source: int  # index of the text among those of the split
    start: int
    stop: int


def chunks(corpus: Corpus, size: int = CHUNK) -> Iterator[Chunk]:
    """Cut a corpus into chunks of about `size` bytes that end with a document or a word."""
    for texts in corpus.texts.values():
        for source, text in enumerate(texts):
            start = 0
            while start < len(text.data):
                stop = chunk_end(text, start + size)
                yield Chunk(text.split, source, start, stop)
                start = stop


def chunk_end(text: CorpusText, target: int) -> int:
    """Return the first offset from `target` on where the text may be cut."""
    if target >= len(text.data):
        return len(text.data)
    document_end = int(text.offsets[np.searchsorted(text.offsets, target)])
    return safe_cut(text.data, target, document_end)
