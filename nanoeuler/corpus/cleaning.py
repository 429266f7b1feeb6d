"""Drop near-duplicates, and training documents that quote held-out text or an evaluation set.

Held-out text is read first, because training documents are compared with it. Then every training
document is read once, and its words are hashed for both searches.
"""

import itertools
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.contamination import NO_RUNS, Measured, Quotations, Runs, hash_runs
from nanoeuler.corpus.minhash import HASHES, sign
from nanoeuler.corpus.near_duplicates import NearDuplicates
from nanoeuler.corpus.split import cut_end
from nanoeuler.corpus.survey import HELD_OUT, NEAR_COPY, TRAIN, Part, Survey, held_out_first
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.errors import UserError


def near_duplicates(found: Survey, threshold: float) -> NearDuplicates:
    """Prepare the search among a source's documents that are no exact copies."""
    signatures = np.zeros((len(found.fates), HASHES), np.uint8)
    return NearDuplicates(signatures, held_out_first(found.fates), threshold)


def look_at_held_out(
    found: Survey, search: NearDuplicates | None, share: float, measure: bool, threads: int
) -> Runs:
    """Return the runs of words in a source's held-out text; none unless `measure`.

    Also finds the near-duplicates in it, whose runs do not count, and sets `found.cuts` where the
    ends of documents are held out.
    """
    if not (found.ends or measure or search):
        return NO_RUNS

    def work(part: Part) -> tuple[Part, np.ndarray, np.ndarray | None, list[Runs]]:
        wanted = np.flatnonzero(part.fates == (TRAIN if found.ends else HELD_OUT))
        batch = part.read().take(wanted) if len(wanted) else Batch.of([])
        if found.ends:
            texts = map(bytes, batch.documents())
            part.cuts[wanted] = [cut_end(text, share) or len(text) for text in texts]
        hashes, borders = hash_words(batch)
        signatures = sign(hashes, borders) if search else None
        if found.ends and measure:
            hashes, borders = hash_words(batch.cut(part.cuts[wanted], batch.sizes))
        of_documents = [
            hash_runs(hashes[start:stop], np.array([0, stop - start]))
            for start, stop in itertools.pairwise(borders)
            if measure
        ]
        return part, wanted, signatures, of_documents

    kept, rank = [NO_RUNS], 0
    total = int(found.sizes.sum())
    with log.Progress(f"hold out {found.source.name}", total, "MB", 1e-6) as progress:
        for part, wanted, signatures, of_documents in ordered_map(work, found.parts(), threads):
            if search and signatures is not None:
                rank = drop_near_copies(search, part, wanted, signatures, rank)
            kept.extend(itertools.compress(of_documents, part.fates[wanted] != NEAR_COPY))
            progress.update(int(part.sizes.sum()))
    if found.ends and (found.cuts == found.sizes).all():
        raise UserError(
            f"corpus source {found.source.name}: {found.sizes.sum()} bytes are too little text to "
            "hold some out for validation; add to it"
        )
    return Runs(*map(np.concatenate, zip(*kept, strict=True)))


class Examined(NamedTuple):
    """The training documents of a part, and its quotations: document, run of words, owner."""

    part: Part
    wanted: np.ndarray  # the training documents
    signatures: np.ndarray | None
    documents: np.ndarray
    runs: np.ndarray
    owners: np.ndarray


def examine(
    found: Survey,
    search: NearDuplicates | None,
    measured: Measured,
    quotations: Quotations,
    first: int,
    threads: int,
) -> np.ndarray:
    """Find near-duplicates among a source's training documents, and the quotations of the others.

    Quotations of `measured` are added to `quotations`, where this source's documents are numbered
    from `first` on. Returns which documents (bool) quote something.
    """
    touched = np.zeros(len(found.fates), bool)
    if found.ends:
        search = None  # `look_at_held_out` has compared all documents of such a source
    check = len(measured.grams) > 0
    if not (search or check):
        return touched

    def work(part: Part) -> Examined:
        wanted = np.flatnonzero(part.fates == TRAIN)
        batch = part.read().take(wanted)
        hashes, borders = hash_words(batch.cut(np.zeros(len(wanted), np.int64), part.cuts[wanted]))
        signatures = sign(hashes, borders) if search else None
        documents = runs = np.zeros(0, np.int64)
        if check:
            documents, runs = measured.find(hashes, borders)
        owners = measured.owners[runs]
        if measured is not quotations.measured:
            runs = np.searchsorted(quotations.measured.grams, measured.grams[runs])
        return Examined(part, wanted, signatures, wanted[documents], runs, owners)

    rank = int(np.isin(found.fates, (HELD_OUT, NEAR_COPY)).sum())
    total = int(found.sizes.sum())
    with log.Progress(f"compare {found.source.name}", total, "MB", 1e-6) as progress:
        for one in ordered_map(work, found.parts(), threads):
            part, documents = one.part, one.documents
            if search and one.signatures is not None:
                rank = drop_near_copies(search, part, one.wanted, one.signatures, rank)
            kept = part.fates[documents] == TRAIN
            touched[part.rows][documents[kept]] = True
            numbers = documents[kept] + (first + part.rows.start)
            quotations.add(numbers, one.runs[kept], one.owners[kept])
            progress.update(int(part.sizes.sum()))
    return touched


def drop_near_copies(
    search: NearDuplicates, part: Part, documents: np.ndarray, signatures: np.ndarray, rank: int
) -> int:
    """Compare documents of a part, which are next in the search's order, from `rank` on.

    Returns the rank after them.
    """
    search.signatures[part.rows.start + documents] = signatures
    search.compare(rank, rank + len(documents))
    part.fates[documents[search.near[part.rows.start + documents]]] = NEAR_COPY
    return rank + len(documents)
