"""Documents that are left out of a corpus for their words: near-duplicates, and training text that quotes what models are measured on.

Held-out text is looked at first, so that what is learned from can be compared with it; then every text once, its words being hashed for both questions.
"""

import itertools

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch, ordered_map
from nanoeuler.corpus.contamination import NO_RUNS, Measured, Quotations, Runs, hash_runs
from nanoeuler.corpus.minhash import HASHES, sign
from nanoeuler.corpus.near_duplicates import NearDuplicates
from nanoeuler.corpus.split import cut_end
from nanoeuler.corpus.survey import HELD_OUT, NEAR_COPY, TRAIN, Part, Survey
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.errors import UserError


def near_duplicates(found: Survey, threshold: float) -> NearDuplicates:
    """A search among the documents of a source that are no exact copies, the held-out ones first."""
    order = np.concatenate(
        [np.flatnonzero(found.fates == HELD_OUT), np.flatnonzero(found.fates == TRAIN)]
    )
    return NearDuplicates(np.zeros((len(found.fates), HASHES), np.uint8), order, threshold)


def look_at_held_out(
    found: Survey, search: NearDuplicates | None, share: float, measure: bool, threads: int
) -> Runs:
    """The runs of words in a source's held-out text, with `measure`; near-duplicates in it are found, too, and count for nothing.

    Where the ends of documents are held out, `found.cuts` learns here where they begin.
    """
    if not (found.ends or measure or search):
        return NO_RUNS

    def work(part: Part) -> tuple[Part, np.ndarray, np.ndarray | None, list[Runs]]:
        wanted = np.flatnonzero(part.fates == (TRAIN if found.ends else HELD_OUT))
        batch = part.read().take(wanted) if len(wanted) else Batch.of([])
        if found.ends:
            part.cuts[wanted] = [
                find_cut(bytes(document), share, found.source.name)
                for document in batch.documents()
            ]
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
    with log.Progress(
        f"hold out {found.source.name}", int(found.sizes.sum()), "MB", 1e-6
    ) as progress:
        for part, wanted, signatures, of_documents in ordered_map(work, found.parts(), threads):
            if search:
                rank = drop_near_copies(search, part, wanted, signatures, rank)
            kept.extend(itertools.compress(of_documents, part.fates[wanted] != NEAR_COPY))
            progress.update(int(part.sizes.sum()))
    return Runs(*map(np.concatenate, zip(*kept, strict=True)))


def examine(
    found: Survey,
    search: NearDuplicates | None,
    measured: Measured,
    quotations: Quotations,
    first: int,
    threads: int,
) -> np.ndarray:
    """Find the near-duplicates among a source's training documents, and note what the others quote of `measured`; their numbers begin at `first`.

    Returns which documents (bool) quote something.
    """
    touched = np.zeros(len(found.fates), bool)
    unknown = (
        search if not found.ends else None
    )  # which documents repeat each other is known where all of them were looked at before
    check = len(measured.grams) > 0
    if not (unknown or check):
        return touched

    def work(
        part: Part,
    ) -> tuple[Part, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        wanted = np.flatnonzero(part.fates == TRAIN)
        hashes, borders = hash_words(
            part.read().take(wanted).cut(np.zeros(len(wanted), np.int64), part.cuts[wanted])
        )
        signatures = sign(hashes, borders) if unknown else None
        documents, runs = (
            measured.find(hashes, borders)
            if check
            else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        )
        owners = measured.owners[runs]
        if measured is not quotations.measured:
            runs = np.searchsorted(quotations.measured.grams, measured.grams[runs])
        return part, wanted, signatures, wanted[documents], runs, owners

    rank = int(np.isin(found.fates, (HELD_OUT, NEAR_COPY)).sum())
    with log.Progress(
        f"compare {found.source.name}", int(found.sizes.sum()), "MB", 1e-6
    ) as progress:
        for part, wanted, signatures, documents, runs, owners in ordered_map(
            work, found.parts(), threads
        ):
            if unknown:
                rank = drop_near_copies(unknown, part, wanted, signatures, rank)
            learned = part.fates[documents] == TRAIN
            touched[part.rows][documents[learned]] = True
            quotations.add(
                documents[learned] + (first + part.rows.start), runs[learned], owners[learned]
            )
            progress.update(int(part.sizes.sum()))
    return touched


def drop_near_copies(
    search: NearDuplicates, part: Part, documents: np.ndarray, signatures: np.ndarray, rank: int
) -> int:
    """Compare documents of a part, the next of the search's order from `rank` on. Returns the rank after them."""
    search.signatures[part.rows.start + documents] = signatures
    search.compare(rank, rank + len(documents))
    part.fates[documents[search.near[part.rows.start + documents]]] = NEAR_COPY
    return rank + len(documents)


def find_cut(text: bytes, share: float, source: str) -> int:
    """Where the held-out end of a document begins."""
    if not (cut := cut_end(text, share)):
        raise UserError(
            f"corpus source {source}: {len(text)} bytes are too little text to hold some out for "
            "validation; add to it"
        )
    return cut
