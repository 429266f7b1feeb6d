"""What becomes of a source's documents, decided before any of them is written: held out, left out as a repetition, or learned from.

One pass over the texts gives each document's place (split.py), size, a hash of its content and, where near-duplicates are looked for, its MinHash
signature. Memory per document: 25 bytes, and what near_duplicates.py says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.document_sources import Source
from nanoeuler.corpus.minhash import HASHES, sign
from nanoeuler.corpus.near_duplicates import NearDuplicates, find_copies
from nanoeuler.corpus.split import last_held_out_place, place
from nanoeuler.corpus.words import hash_words
from nanoeuler.errors import UserError

TRAIN, HELD_OUT, COPY, NEAR_COPY = range(4)
BLOCK = 100_000  # documents compared between two looks at the clock


class Part(NamedTuple):
    """A batch and what becomes of its documents."""

    read: Callable[[], Batch]
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
        chosen = np.isin(self.fates, fates)
        return {"documents": int(chosen.sum()), "bytes": int(self.sizes[chosen].sum())}

    def parts(self) -> Iterator[Part]:
        first = 0
        for read, count in zip(self.source.batches(), self.counts, strict=True):
            rows = slice(first, first + count)
            yield Part(read, self.fates[rows], self.sizes[rows], self.cuts[rows])
            first += count


def survey(source: Source, share: float, duplicates: str, threshold: float, threads: int) -> Survey:
    """Decide about each document of `source`. `duplicates` says which are looked for: near (and exact) ones, exact ones, or none.

    What is held out depends on `share` alone. A training document that repeats a held-out one is left out, as one that repeats another of its own side is.
    """
    near = duplicates == "near"
    parts: list[tuple[np.ndarray, ...]] = []
    with log.Progress(f"index {source.name}", source.size(), "MB", 1e-6) as progress:
        for part in ordered_map(partial(look_at, near=near), source.batches(), threads):
            parts.append(part)
            progress.update(int(part[1].sum()))
    counts = [len(part[1]) for part in parts]
    if not sum(counts):
        reasons = f" ({'; '.join(f'{which}: {why}' for which, why in source.left_out.items())})" if source.left_out else ""
        raise UserError(f"corpus source {source.name}: no text is left{reasons}; loosen its filters, add to it, or take it out of corpus.sources")
    places, sizes, identities, signatures = (np.concatenate(column) for column in zip(*parts, strict=True))
    del parts
    last = last_held_out_place(places, sizes, share)
    fates = np.full(len(sizes), TRAIN, np.uint8)
    if last is not None:
        fates[places <= np.uint64(last)] = HELD_OUT
    order = np.concatenate([np.flatnonzero(fates == HELD_OUT), np.flatnonzero(fates == TRAIN)])
    if duplicates != "none":
        fates[find_copies(identities, order)] = COPY
    if near:
        fates[near_copies(source.name, signatures, order[fates[order] != COPY], threshold)] = NEAR_COPY
    return Survey(source, fates, sizes, np.where(fates == HELD_OUT, 0, sizes), counts, ends=last is None)


def look_at(read: Callable[[], Batch], near: bool) -> tuple[np.ndarray, ...]:
    """Places, sizes, identities and signatures of a batch's documents."""
    batch = read()
    hashes = batch.hashes()
    keys = batch.keys if batch.keys is not None else [sha256.hex() for sha256 in hashes]
    places = np.fromiter(map(place, keys), np.uint64, len(keys))
    identities = np.frombuffer(b"".join(hashes), ">u8").reshape(-1, 4)[:, 0].astype(np.uint64)
    signatures = sign(*hash_words(batch.text, batch.offsets)) if near else np.zeros((len(batch), 0), np.uint8)
    return places, batch.sizes, identities, signatures


def near_copies(name: str, signatures: np.ndarray, order: np.ndarray, threshold: float) -> np.ndarray:
    """The documents that are near-duplicates of earlier ones, in the given order."""
    found = NearDuplicates(signatures.reshape(-1, HASHES), order, threshold)
    with log.Progress(f"compare {name}", len(order), "documents") as progress:
        for first in range(0, len(order), BLOCK):
            end = min(first + BLOCK, len(order))
            found.compare(first, end)
            progress.update(end - first)
    return np.flatnonzero(found.near)
