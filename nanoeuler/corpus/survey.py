"""Decide for each document of a source whether it is held out, dropped as a copy, or trained on.

This comes before any document is written, and needs sizes and hashes alone: only sources that keep
no hashes are read for it. cleaning.py compares texts afterwards. Memory per document: 25 bytes, and
that of near_duplicates.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.document_sources import OWN_TEXT, Source
from nanoeuler.corpus.near_duplicates import find_copies
from nanoeuler.corpus.split import bytes_of_ends, last_held_out_position
from nanoeuler.errors import UserError

TRAIN, HELD_OUT, COPY, NEAR_COPY, QUOTING = range(5)


class Part(NamedTuple):
    """A batch, the rows of its documents in the survey, and the survey's entries for them."""

    read: Callable[[], Batch]
    rows: slice
    fates: np.ndarray
    sizes: np.ndarray
    cuts: np.ndarray


@dataclass
class Survey:
    """The `fates` (uint8), `sizes` and `cuts` (int64) of a source's documents.

    The bytes before a document's cut are trained on, those after it held out. `counts` has the
    number of documents of each batch. With `ends`, the end of each document is held out instead of
    whole documents, and the cuts are still to be found.
    """

    source: Source
    fates: np.ndarray
    sizes: np.ndarray
    cuts: np.ndarray
    counts: Sequence[int]
    ends: bool

    def count(self, *fates: int) -> dict[str, int]:
        return self.count_where(np.isin(self.fates, fates))

    def count_where(self, chosen: np.ndarray) -> dict[str, int]:
        return {"documents": int(chosen.sum()), "bytes": int(self.sizes[chosen].sum())}

    def parts(self) -> Iterator[Part]:
        first = 0
        for read, count in zip(self.source.batches(), self.counts, strict=True):
            rows = slice(first, first + count)
            yield Part(read, rows, self.fates[rows], self.sizes[rows], self.cuts[rows])
            first += count

    def groups(self) -> list["Survey"]:
        """The surveys of the source's groups of files; they share the memory of this one."""
        found, first, batch = [], 0, 0
        for source, documents in self.source.groups():
            rows = slice(first, first + documents)
            stop = batch
            while first < rows.stop:
                first += self.counts[stop]
                stop += 1
            kinds = self.fates[rows], self.sizes[rows], self.cuts[rows]
            source.seen = None if self.source.seen is None else self.source.seen[rows]
            found.append(Survey(source, *kinds, self.counts[batch:stop], self.ends))
            batch = stop
        return found or [self]


def survey(source: Source, share: float, copies: bool, threads: int) -> Survey:
    """Decide about each document of `source`.

    With `copies`, a document with the text of an earlier one is dropped, and so is a training
    document with the text of a held-out one. The choice of held-out documents depends on `share`
    alone. What is read of the source later must be what is read here.
    """
    parts = []
    with log.Progress(f"index {source.name}", source.size(), "MB", 1e-6) as progress:
        for outline in ordered_map(lambda find: find(), source.outlines(), threads):
            parts.append(outline)
            progress.update(int(outline.sizes.sum()))
    counts = [len(outline.sizes) for outline in parts]
    if not sum(counts):
        reasons = "; ".join(f"{which}: {why}" for which, why in source.left_out.items())
        reasons = f" ({reasons})" if reasons else ""
        raise UserError(
            f"corpus source {source.name}: no text is left{reasons}; "
            "loosen its filters, add to it, or take it out of corpus.sources"
        )
    positions, sizes, identities = (np.concatenate(column) for column in zip(*parts, strict=True))
    source.seen = identities
    last = last_held_out_position(positions, sizes, share)
    if last is not None and source.kind == OWN_TEXT:
        whole = sizes[positions <= np.uint64(last)].sum()
        if bytes_of_ends(sizes, share).sum() < whole:
            last = None
    fates = np.full(len(sizes), TRAIN, np.uint8)
    if last is not None:
        fates[positions <= np.uint64(last)] = HELD_OUT
    if copies:
        fates[find_copies(identities, held_out_first(fates))] = COPY
    cuts = np.where(fates == HELD_OUT, 0, sizes)
    return Survey(source, fates, sizes, cuts, counts, ends=last is None)


def held_out_first(fates: np.ndarray) -> np.ndarray:
    """Return the numbers of the documents that are not dropped: held-out ones, then training."""
    return np.concatenate([np.flatnonzero(fates == HELD_OUT), np.flatnonzero(fates == TRAIN)])
