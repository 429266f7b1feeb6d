"""Decide for each document of a source whether it is held out, dropped as a copy, or trained on.

This comes before any document is written, and needs sizes and hashes alone: only sources that keep
no hashes are read for it. cleaning.py compares texts afterwards. Of each document 34 bytes lie on
disk, and 24 more while copies are sought.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.document_sources import OWN_TEXT, Outline, Reader
from nanoeuler.corpus.split import last_held_out_position, last_of_own_text
from nanoeuler.errors import UserError
from nanoeuler.storage.spilled import SortedRuns, blocks, disk_array, map_file
from nanoeuler.system.threads import ordered_map

TRAIN, HELD_OUT, COPY, NEAR_COPY, QUOTING = range(5)


NO_STRETCHES = np.zeros((0, 3), np.int64)


class Part(NamedTuple):
    """A batch, the rows of its documents in the survey, and the survey's entries for them.

    The rows in `stretches` count from the batch's first document.
    """

    read: Callable[[], Batch]
    rows: slice
    fates: np.ndarray
    sizes: np.ndarray
    stretches: np.ndarray

    def trained(self, batch: Batch) -> tuple[Batch, np.ndarray]:
        """Training pieces of the batch, and the document (int64) that each belongs to.

        A piece is a whole document, or the text before, between or after held-out stretches.
        """
        wanted = np.flatnonzero(self.fates == TRAIN)
        if not len(self.stretches):
            return batch.take(wanted), wanted
        pieces = []
        for document in wanted.tolist():
            of_document = self.stretches[:, 0] == document
            inside = self.stretches[of_document, 1:].ravel().tolist()
            places = [0, *inside, int(self.sizes[document])]
            pieces += [
                (document, start, stop)
                for start, stop in zip(places[::2], places[1::2], strict=True)
                if start < stop
            ]
        return cut_pieces(batch, np.array(pieces, np.int64).reshape(-1, 3))

    def held_out(self, batch: Batch, fates: Sequence[int]) -> tuple[Batch, np.ndarray]:
        """The stretches that are held out of documents with one of `fates`, as `trained` does."""
        of_these = np.isin(self.fates[self.stretches[:, 0]], fates)
        return cut_pieces(batch, self.stretches[of_these])


def cut_pieces(batch: Batch, pieces: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Cut pieces (their documents, starts and stops) out of a batch; returns documents, too."""
    documents, starts, stops = pieces.T
    return batch.take(documents).cut(starts, stops), documents


@dataclass
class Survey:
    """The `fates` (uint8) and `sizes` (int64, bytes) of a source's documents.

    `counts` has the number of documents of each batch. With `parted`, stretches of each document
    are held out instead of whole documents: `stretches` has the document, start and stop (int64) of
    each, in their order. `look_at_held_out` finds them.
    """

    source: Reader
    fates: np.ndarray
    sizes: np.ndarray
    counts: Sequence[int]
    parted: bool
    stretches: np.ndarray = field(default_factory=NO_STRETCHES.copy)

    def count(self, *fates: int) -> dict[str, int]:
        return self.count_of(self.fates, *fates)

    def count_of(self, codes: np.ndarray, *wanted: int) -> dict[str, int]:
        """Count the documents of which `codes` (uint8) has one of the `wanted`, and their bytes."""
        documents = size = 0
        for rows in blocks(codes, self.sizes):
            chosen = np.isin(codes[rows], wanted)
            documents += int(chosen.sum())
            size += int(self.sizes[rows][chosen].sum())
        return {"documents": documents, "bytes": size}

    def parts(self) -> Iterator[Part]:
        first = 0
        for read, count in zip(self.source.batches(), self.counts, strict=True):
            rows = slice(first, first + count)
            yield Part(read, rows, self.fates[rows], self.sizes[rows], self.stretches_of(rows))
            first += count

    def stretches_of(self, rows: slice) -> np.ndarray:
        """The stretches in documents of some rows, which are counted from the first of them."""
        inside = slice(*np.searchsorted(self.stretches[:, 0], (rows.start, rows.stop)))
        return self.stretches[inside] - np.array([rows.start, 0, 0])

    def groups(self) -> list["Survey"]:
        """The surveys of the source's groups of files; they share the memory of this one."""
        found, first, batch = [], 0, 0
        for source, documents in self.source.groups():
            rows = slice(first, first + documents)
            stop = batch
            while first < rows.stop:
                first += self.counts[stop]
                stop += 1
            source.seen = None if self.source.seen is None else self.source.seen[rows]
            counts = self.counts[batch:stop]
            inside = self.stretches_of(rows)
            found.append(
                Survey(source, self.fates[rows], self.sizes[rows], counts, self.parted, inside)
            )
            batch = stop
        return found or [self]


def survey(source: Reader, share: float, copies: bool, threads: int, folder: Path) -> Survey:
    """Decide about each document of `source`.

    With `copies`, a document with the text of an earlier one is dropped, and so is a training
    document with the text of a held-out one. The choice of held-out documents depends on `share`
    alone. What is read of the source later must be what is read here. The survey's arrays lie in
    `folder`.
    """
    counts = []
    inside = Path(tempfile.mkdtemp(dir=folder))
    with (
        log.Progress(f"index {source.name}", source.size(), "MB", 1e-6) as progress,
        contextlib.ExitStack() as stack,
    ):
        files = [stack.enter_context(open(inside / name, "wb")) for name in Outline._fields]
        for outline in ordered_map(lambda find: find(), source.outlines(), threads):
            for file, column in zip(files, outline, strict=True):
                file.write(np.ascontiguousarray(column).data)
            counts.append(len(outline.sizes))
            progress.update(int(outline.sizes.sum()))
    if not sum(counts):
        reasons = "; ".join(f"{which}: {why}" for which, why in source.left_out.items())
        reasons = f" ({reasons})" if reasons else ""
        raise UserError(
            f"corpus source {source.name}: no text is left{reasons}; "
            "loosen its filters, add to it, or take it out of corpus.sources"
        )
    columns = zip(Outline._fields, (np.uint64, np.int64, np.uint64, np.uint64), strict=True)
    positions, sizes, identities, source.seen = (map_file(inside / name, t) for name, t in columns)
    choose = last_of_own_text if source.kind == OWN_TEXT else last_held_out_position
    last = choose(positions, sizes, share)
    fates = disk_array(inside / "fates", len(sizes), np.uint8)  # all TRAIN
    if last is not None:
        for rows in blocks(fates, positions):
            fates[rows][positions[rows] <= np.uint64(last)] = HELD_OUT
    if copies:
        copied = find_copies(identities, fates, inside)  # held-out ones come first
        for rows in blocks(fates, copied):
            fates[rows][copied[rows]] = COPY
    return Survey(source, fates, sizes, counts, parted=last is None)


def find_copies(identities: np.ndarray, before: np.ndarray, folder: Path) -> np.ndarray:
    """Mark (bool, on disk) the documents whose identity an earlier one has.

    An identity is a hash (uint64) of the text. Documents for which `before` is not 0 come before
    all others. The identities are sorted in `folder`.
    """
    copies = disk_array(folder / "copies", len(identities), bool)

    def mark_repeats(records: np.ndarray) -> np.ndarray:
        """Keep the first document of each identity."""
        repeats = np.append(False, np.diff(records[:, 0]) == 0)
        if not repeats.any():
            return records
        among = repeats | np.append(repeats[1:], False)
        equal = records[among]
        identity, document, later = equal.T
        records[among] = equal[np.lexsort((document, later, identity))]
        copies[records[repeats, 1]] = True
        return records[~repeats]

    runs = SortedRuns(folder / "sorted", 64, reduce=mark_repeats)
    for rows in blocks(identities, before):
        documents = np.arange(rows.start, rows.stop, dtype=np.uint64)
        runs.add(
            np.stack([identities[rows], documents, (before[rows] == 0).astype(np.uint64)], axis=1)
        )
    runs.finish()
    for part in runs.parts():
        runs.read(part)
    runs.remove()
    return copies
