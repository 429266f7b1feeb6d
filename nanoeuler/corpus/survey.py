"""What becomes of a source's documents, decided before any of them is written: held out, left out as a copy, or learned from.

What stands here needs no text but that of sources which don't know their documents' hashes; repeating.py and quoting.py look further. Memory per
document: 25 bytes, and what near_duplicates.py says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.document_sources import Source
from nanoeuler.corpus.near_duplicates import find_copies
from nanoeuler.corpus.split import last_held_out_place
from nanoeuler.errors import UserError

TRAIN, HELD_OUT, COPY, NEAR_COPY, QUOTING = range(5)


class Part(NamedTuple):
    """A batch, which of the source's documents it has, and what becomes of them."""

    read: Callable[[], Batch]
    rows: slice
    fates: np.ndarray
    sizes: np.ndarray
    cuts: np.ndarray


@dataclass
class Survey:
    """`fates` (uint8), `sizes` and `cuts` (int64) of a source's documents: the bytes before the cut are learned from, those behind it held out.

    `counts` says how many documents each batch has. `ends`: no document is held out but the end of each; then the cuts are to be found.
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


def survey(source: Source, share: float, copies: bool, threads: int) -> Survey:
    """Decide about each document of `source`. `copies`: a document with the text of an earlier one is left out.

    What is held out depends on `share` alone. A training document that copies a held-out one is left out, as one that copies another of its own side is.
    """
    parts = []
    with log.Progress(f"index {source.name}", source.size(), "MB", 1e-6) as progress:
        for outline in ordered_map(lambda find: find(), source.outlines(), threads):
            parts.append(outline)
            progress.update(int(outline.sizes.sum()))
    counts = [len(outline.sizes) for outline in parts]
    if not sum(counts):
        reasons = (
            f" ({'; '.join(f'{which}: {why}' for which, why in source.left_out.items())})"
            if source.left_out
            else ""
        )
        raise UserError(
            f"corpus source {source.name}: no text is left{reasons}; "
            "loosen its filters, add to it, or take it out of corpus.sources"
        )
    places, sizes, identities = (np.concatenate(column) for column in zip(*parts, strict=True))
    last = last_held_out_place(places, sizes, share)
    fates = np.full(len(sizes), TRAIN, np.uint8)
    if last is not None:
        fates[places <= np.uint64(last)] = HELD_OUT
    if copies:
        fates[
            find_copies(
                identities,
                np.concatenate([np.flatnonzero(fates == HELD_OUT), np.flatnonzero(fates == TRAIN)]),
            )
        ] = COPY
    return Survey(
        source, fates, sizes, np.where(fates == HELD_OUT, 0, sizes), counts, ends=last is None
    )
