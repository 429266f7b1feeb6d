"""Drop near-duplicates, and training documents that quote held-out text or an evaluation set.

Held-out text is read first, because training documents are compared with it. Then every training
document is read once, and its words are hashed for both searches.
"""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.contamination import (
    GRAM,
    NO_RUNS,
    NONE,
    ONLY_FREQUENT,
    PART,
    QUOTATION,
    Measured,
    Quotations,
    Runs,
    hash_runs,
    runs_of_evaluation_set,
)
from nanoeuler.corpus.document_sources import OWN_TEXT, Reader
from nanoeuler.corpus.near_duplicates import find_near_copies
from nanoeuler.corpus.signatures import HASHES, sign_documents
from nanoeuler.corpus.split import choose_stretches
from nanoeuler.corpus.survey import (
    HELD_OUT,
    NEAR_COPY,
    NO_STRETCHES,
    QUOTING,
    TRAIN,
    Part,
    Survey,
    cut_pieces,
    survey,
)
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.errors import UserError
from nanoeuler.storage.spilled import BLOCK, blocks, disk_array, map_file
from nanoeuler.system.threads import ordered_map

NO_WORDS = np.zeros(0, np.uint64), np.zeros(1, np.int64)
NO_ROWS = np.zeros(0, np.int64)
NO_SIGNATURES = np.zeros((0, HASHES), np.uint8)
HELD_OUT_TEXT = "held-out text"  # its name among the sets that training documents may quote


@dataclass(frozen=True)
class Cleaning:
    """The settings of what is dropped from a corpus.

    `duplicates` says for each kind of source (web, books, own_text) whether near (and exact)
    duplicates, exact ones or none are dropped. With `decontaminate`, training documents that quote
    held-out text or one of `evaluation_sets` (files of JSON lines, by name) are dropped.
    """

    duplicates: Mapping[str, str] = field(default_factory=dict)
    threshold: float = 0.8
    decontaminate: bool = False
    evaluation_sets: Mapping[str, Path] = field(default_factory=dict)


class HeldOut(NamedTuple):
    """What is known of a source's held-out text."""

    runs: Runs  # of words in it, without those of near-duplicates
    signatures: np.ndarray | None  # uint8 (documents, HASHES), where whole ones are compared


def look_at_held_out(
    found: Survey,
    near: bool,
    threshold: float,
    share: float,
    measure: bool,
    threads: int,
    folder: Path,
) -> HeldOut:
    """Read a source's held-out text; its runs of words are collected in `folder` if `measure`.

    With `near`, finds the near-duplicates in it, whose runs do not count. Sets `found.stretches`
    where stretches of documents are held out.
    """
    if not (found.parted or measure or near):
        return HeldOut(NO_RUNS, None)

    def work(part: Part) -> LookedAt:
        wanted = np.flatnonzero(part.fates == (TRAIN if found.parted else HELD_OUT))
        batch = part.read() if len(wanted) else Batch.of([])
        held_out, documents = batch.take(wanted), wanted
        hashes, borders = hash_words(held_out) if near or not found.parted else NO_WORDS
        signatures = sign_documents(held_out, hashes, borders) if near else NO_SIGNATURES
        stretches = NO_STRETCHES
        if found.parted:
            stretches = stretches_of(held_out, wanted, share)
            held_out, documents = cut_pieces(batch, stretches)
            hashes, borders = hash_words(held_out) if measure else NO_WORDS
        runs, counts = NO_RUNS, np.zeros((len(documents), len(Runs._fields)), np.int64)
        if measure:
            runs = hash_runs(hashes, borders)
            counts += np.maximum(0, np.diff(borders)[:, None] - [GRAM - 1, PART - 1])
        first = part.rows.start
        stretches = stretches + np.array([first, 0, 0])
        return LookedAt(
            part.rows, first + wanted, signatures, stretches, first + documents, counts, *runs
        )

    total = int(found.sizes.sum())
    inside = Path(tempfile.mkdtemp(dir=folder))
    pieces = []  # held out of each part
    with (
        log.Progress(f"hold out {found.source.name}", total, "MB", 1e-6) as progress,
        contextlib.ExitStack() as stack,
    ):
        columns = LookedAt._fields[1:]
        files = [stack.enter_context(open(inside / f"{name}-all", "wb")) for name in columns]
        for one in ordered_map(work, found.parts(), threads):
            for file, column in zip(files, one[1:], strict=True):
                file.write(np.ascontiguousarray(column).data)
            pieces.append(len(one.documents))
            progress.update(int(found.sizes[one.rows].sum()))
    rows = map_file(inside / "wanted-all", np.int64)
    signatures = map_file(inside / "signatures-all", np.uint8).reshape(-1, HASHES)
    found.stretches = np.array(map_file(inside / "stretches-all", np.int64).reshape(-1, 3))
    documents = map_file(inside / "documents-all", np.int64)
    counts = map_file(inside / "counts-all", np.int64).reshape(-1, len(Runs._fields))
    if near:
        copies = find_near_copies(signatures, threshold, threads, inside)
        for some in blocks(rows, copies):
            found.fates[rows[some][copies[some]]] = NEAR_COPY
    for kind, name in enumerate(Runs._fields):
        of_all, stop, last = map_file(inside / f"{name}-all", np.uint64), 0, 0
        with open(inside / name, "wb") as file:
            for count in pieces:
                some, last = slice(last, last + count), last + count
                kept = found.fates[documents[some]] != NEAR_COPY
                start, stop = stop, stop + int(counts[some, kind].sum())
                file.write(of_all[start:stop][np.repeat(kept, counts[some, kind])].data)
        (inside / f"{name}-all").unlink()
    runs = Runs(*(map_file(inside / name, np.uint64) for name in Runs._fields))
    # where stretches are held out, all documents have been compared
    return HeldOut(runs, signatures if near and not found.parted else None)


class LookedAt(NamedTuple):
    """Held-out text of a part, or all of it where the stretches had to be found."""

    rows: slice  # those of the part in the survey
    wanted: np.ndarray  # int64: the rows of the documents that were read
    signatures: np.ndarray  # theirs
    stretches: np.ndarray  # as in a survey
    documents: np.ndarray  # int64: the row of each held-out piece's document
    counts: np.ndarray  # int64 (held-out pieces, 2): their runs of both kinds
    grams: np.ndarray  # all of these runs (`Runs`)
    parts: np.ndarray


def stretches_of(batch: Batch, documents: np.ndarray, share: float) -> np.ndarray:
    """Choose the stretches to hold out of a batch, whose documents have the numbers `documents`."""
    found = [NO_STRETCHES]
    for document, text in zip(documents.tolist(), batch.documents(), strict=True):
        chosen = choose_stretches(bytes(text), share)
        found.append(np.insert(chosen, 0, document, axis=1))
    return np.concatenate(found)


def require_held_out(surveys: Sequence[Survey]) -> None:
    """Say which sources are too small to hold something out; raise `UserError` if all are."""
    whole = [found for found in surveys if found.parted and not len(found.stretches)]
    names = ", ".join(found.source.name for found in whole)
    size = sum(int(found.sizes.max()) for found in whole)  # all documents of each are one
    if len(whole) == len(surveys):
        raise UserError(
            f"corpus source {names}: {size} bytes of text, copies counted once, are too little to "
            "hold some out for validation; add to it"
        )
    if whole:
        log.line(
            "text",
            f"corpus source {names}: {size} bytes are too little to hold some out; all is "
            "trained on",
        )


class Examined(NamedTuple):
    """The training documents of some rows of a survey, and what they quote of the measured texts.

    A quotation is a document (its row in the survey), a run of words and its owner.
    """

    rows: slice
    signatures: np.ndarray  # uint8 (training documents, HASHES)
    documents: np.ndarray  # int64
    runs: np.ndarray  # int64
    owners: np.ndarray  # uint8


def compare(
    found: Survey, signing: bool, others: Measured, measured: Measured, threads: int
) -> Iterator[Examined]:
    """Sign a source's training documents if `signing`, and look for quotations of `others`.

    Runs of words are numbered as in `measured`, which has all of them. Whatever is found in a batch
    depends on its texts and on `others` alone.
    """
    check = len(others.grams) > 0
    if not (signing or check):
        return

    def work(part: Part) -> Examined:
        batch, of_pieces = part.trained(part.read())
        hashes, borders = hash_words(batch)
        signatures = sign_documents(batch, hashes, borders) if signing else NO_SIGNATURES
        documents = runs = NO_ROWS
        if check:
            pieces, runs = others.find(hashes, borders)
            documents = part.rows.start + of_pieces[pieces]
            if found.parted:  # each once per document
                documents, runs = np.unique(np.stack([documents, runs]), axis=1)
        owners = others.owners[runs]
        if others is not measured:
            runs = np.searchsorted(measured.grams, others.grams[runs])
        return Examined(part.rows, signatures, documents, runs, owners)

    total = int(found.sizes.sum())
    with log.Progress(f"compare {found.source.name}", total, "MB", 1e-6) as progress:
        for one in ordered_map(work, found.parts(), threads):
            yield one
            progress.update(int(found.sizes[one.rows].sum()))


@dataclass
class Findings:
    """Held-out texts and settings of all sources, known before training documents are compared.

    `signed` has the signatures of each source's held-out documents, and None where no
    near-duplicates of them are sought; `others` is what each source is compared with. `measured`
    has all that models are measured on.
    """

    surveys: list[Survey]
    signed: list[np.ndarray | None]
    measured: Measured
    others: list[Measured]

    def compare(self, number: int, found: Survey, threads: int) -> Iterator[Examined]:
        """Look at the texts of source `number`, or of the group of it that `found` has."""
        signing = self.signed[number] is not None
        return compare(found, signing, self.others[number], self.measured, threads)

    def decide(
        self, examined: Sequence[Iterable[Examined]], threshold: float, threads: int, folder: Path
    ) -> tuple[list[dict[str, Any]], int]:
        """Enter near-duplicates and quotations, which were found in each source, in its survey.

        What does not fit into memory is put into `folder`. Returns the manifest's counts of each
        source's quotations, and the number of runs of words that were ignored as frequent.
        """
        borders = np.cumsum([0, *(len(found.fates) for found in self.surveys)]).tolist()
        owners = disk_array(folder / "owners", borders[-1], np.uint8)
        owners[:] = NONE
        quotations = Quotations(self.measured, owners, folder)
        for found, signed, pieces, first in zip(
            self.surveys, self.signed, examined, borders[:-1], strict=True
        ):
            with tempfile.TemporaryDirectory(dir=folder) as inside:
                files = Path(inside)
                with (
                    open(files / "signatures", "wb") as signatures,
                    open(files / "quotations", "wb") as quoting,
                ):
                    signatures.write((NO_SIGNATURES if signed is None else signed).data)
                    for one in pieces:
                        signatures.write(one.signatures.data)
                        quoting.write(np.rec.fromarrays(one[2:], QUOTATION).data)
                if signed is not None:
                    of_all = map_file(files / "signatures", np.uint8).reshape(-1, HASHES)
                    near = find_near_copies(of_all, threshold, threads, files)[len(signed) :]
                    for rows in blocks(found.fates, near):
                        fates = found.fates[rows]
                        training = np.flatnonzero(fates == TRAIN)
                        fates[training[near[: len(training)]]] = NEAR_COPY
                        near = near[len(training) :]
                with open(files / "quotations", "rb") as quoting:
                    while len(some := np.fromfile(quoting, QUOTATION, BLOCK)):
                        some = some[found.fates[some["document"]] == TRAIN]
                        quotations.add(some["document"] + first, some["run"], some["owner"])
        owners = quotations.owners()
        told = []
        for found, first in zip(self.surveys, borders[:-1], strict=True):
            of_source = owners[first : first + len(found.fates)]
            for rows in blocks(of_source, found.fates):
                found.fates[rows][of_source[rows] < ONLY_FREQUENT] = QUOTING
            told.append(
                {
                    "contaminated": {
                        test: found.count_of(of_source, index)
                        for index, test in enumerate(self.measured.names)
                    },
                    "only frequent runs": found.count_of(of_source, ONLY_FREQUENT),
                }
            )
        return told, quotations.ignored


def look_at(
    sources: Sequence[Reader], share: float, cleaning: Cleaning, threads: int, folder: Path
) -> Findings:
    """Decide by hashes what is held out and what is a copy, and read the held-out text.

    What does not fit into memory is put into `folder`.
    """
    modes = [cleaning.duplicates.get(source.kind, "none") for source in sources]
    surveys = [
        survey(source, share, mode != "none", threads, folder)
        for source, mode in zip(sources, modes, strict=True)
    ]
    checked = cleaning.decontaminate
    known = [
        look_at_held_out(found, mode == "near", cleaning.threshold, share, checked, threads, folder)
        for found, mode in zip(surveys, modes, strict=True)
    ]
    held_out = [each.runs for each in known]
    require_held_out(surveys)
    tests = [
        (test, runs_of_evaluation_set(path, folder))
        for test, path in cleaning.evaluation_sets.items()
        if checked
    ]
    of_all = [(HELD_OUT_TEXT, runs) for runs in held_out if checked]
    measured = Measured([*of_all, *tests], folder)
    others = []
    for found in surveys:
        is_own = found.source.kind == OWN_TEXT
        if not (checked and (is_own or found.parted)):
            others.append(measured)
            continue
        # one's own text may repeat itself; a document does not quote what is held out of it
        of_others = [
            (HELD_OUT_TEXT, runs)
            for other, runs in zip(surveys, held_out, strict=True)
            if other is not found and not (is_own and other.source.kind == OWN_TEXT)
        ]
        sets = [(HELD_OUT_TEXT, NO_RUNS), *of_others, *tests]
        others.append(Measured(sets, folder, measured.part_filter))  # a single filter in memory
    return Findings(surveys, [each.signatures for each in known], measured, others)
