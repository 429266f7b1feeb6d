"""Training documents that quote what a model is measured on: any `GRAM` words in a row in common with held-out text or an evaluation set.

A run of words that more than `FREQUENT` training documents have (repetitions not counted) is nobody's leak but boilerplate: notices, navigation, set phrases.
Such runs are ignored (Brown et al. 2020, appendix C).

Words are those of words.py: lower case, without punctuation. A text with fewer words than that can be neither found nor quoted. Hashes of 64 bits stand
for the runs of words: one comparison in 10¹⁹ takes different runs for the same.

A training document is not looked through run by run: any `GRAM` words in a row hold one of its parts that begin at every `STRIDE`th word, and only where such a
part is one of the measured texts' is there anything to search.

Memory for each run of words in the texts that are measured on: 13 bytes (48 while they are sorted), 4 to 8 for what spares searching, and at most 17 for
each of the first `FREQUENT` documents that quote it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.words import finalise
from nanoeuler.errors import UserError

GRAM = 13  # words (Brown et al. 2020, appendix C)
FREQUENT = 10  # training documents
STRIDE = 8  # words from one part of a training document that is looked up to the next
PART = (
    GRAM - STRIDE + 1
)  # words of it: of `STRIDE` such runs that begin one word apart, the last ends where `GRAM` words end
ROLL = np.uint64(0xD6E8FEB86659FD93)
NONE = 255
KEYS_OF_A_CELL = 4  # hashes at most, on average, that share 64 bits of the filter


class Runs(NamedTuple):
    """The hashes (uint64) of all runs of words in some texts: of `GRAM`, and of `PART`."""

    grams: np.ndarray
    parts: np.ndarray


NO_RUNS = Runs(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class Measured:
    """Texts that models are measured on, as a sorted row of hashes: sets of (name, their runs of words), several of one name being one set.

    A run of words that several sets have belongs to the first.
    """

    def __init__(self, sets: Sequence[tuple[str, Runs]]):
        self.names = list(dict.fromkeys(name for name, _ in sets))
        assert len(self.names) < NONE
        grams, parts = (
            np.concatenate(kind) for kind in zip(NO_RUNS, *(runs for _, runs in sets), strict=True)
        )
        owners = np.concatenate(
            [
                np.zeros(0, np.uint8),
                *(
                    np.full(len(runs.grams), self.names.index(name), np.uint8)
                    for name, runs in sets
                ),
            ]
        )
        order = np.argsort(grams)
        grams = grams[order]
        first = np.flatnonzero(np.append(True, grams[1:] != grams[:-1])[: len(grams)])
        self.grams, self.owners = grams[first], np.minimum.reduceat(owners[order], first)
        self.part_filter = bloom_filter(parts)
        bits = max(1, len(self.grams).bit_length() - 1)
        self.starts = np.searchsorted(
            self.grams, np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        ).astype(np.uint32)

    def find(self, hashes: np.ndarray, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All quotations in documents given by their words, each of a document once: its number, and the run of words by its place in `grams` (int64 both)."""
        found = np.empty(len(hashes), np.int64)
        count = find_grams(hashes, borders, self.grams, self.starts, self.part_filter, found)
        return np.divmod(np.unique(found[:count]), max(1, len(self.grams)))


class Quotations:
    """Who quotes what, of a whole corpus: runs of words of `measured`, until a run is found to be frequent. Documents are numbered throughout the corpus."""

    def __init__(self, measured: Measured):
        self.measured = measured
        self.counts = np.zeros(len(measured.grams), np.int32)  # documents that have each run
        self.noted: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, documents: np.ndarray, runs: np.ndarray, owners: np.ndarray) -> None:
        """Quotations by training documents that are not repetitions, each of a document once; `owners` are the sets that they count under."""
        np.add.at(self.counts, runs, 1)
        rare = self.counts[runs] <= FREQUENT
        self.noted.append((documents[rare], runs[rare], owners[rare]))

    @property
    def ignored(self) -> int:
        """Runs of words that are frequent."""
        return int((self.counts > FREQUENT).sum())

    def owners(self, total: int) -> np.ndarray:
        """For each of the corpus's documents the first of the sets that it quotes by a run of words that is not frequent (an index into `names`), or `NONE`."""
        first = np.full(total, NONE, np.uint8)
        for documents, runs, owners in self.noted:
            rare = self.counts[runs] <= FREQUENT
            np.minimum.at(first, documents[rare], owners[rare])
        return first


def read_evaluation_set(path: Path) -> Batch:
    """The items of a file of JSON lines as documents: each one's texts together, in their order (a question, its input, its answer)."""
    documents = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                documents.append("\n".join(texts_in(json.loads(line))).encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); fetch it first: "
            "nanoeuler questions, or nanoeuler task"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{path}: not JSON lines ({error}); delete it and fetch it again"
        ) from error
    return Batch.of(documents)


def texts_in(value: object) -> list[str]:
    """All texts in a JSON value, in their order."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_in(item)]


def hash_runs(hashes: np.ndarray, borders: np.ndarray) -> Runs:
    """All runs of words within the documents whose words are hashes[borders[i]:borders[i + 1]]."""
    return Runs(*(runs_of(hashes, borders, words) for words in (GRAM, PART)))


@compiled()
def runs_of(hashes, borders, words):
    runs = np.empty(len(hashes), np.uint64)
    count = 0
    for document in range(len(borders) - 1):
        for first in range(borders[document], borders[document + 1] - words + 1):
            runs[count] = hash_of_run(hashes, first, words)
            count += 1
    return runs[:count]


@compiled()
def hash_of_run(hashes, first, words):
    value = np.uint64(0)
    for at in range(first, first + words):
        value = value * ROLL + hashes[at]
    return finalise(value)


@compiled()
def bits_of(value):
    """The four bits of a cell that stand for a hash (a Bloom filter in blocks of 64 bits; Putze, Sanders and Singler 2007)."""
    bits = np.uint64(0)
    for shift in (58, 52, 46, 40):
        bits |= np.uint64(1) << (value >> np.uint64(shift) & np.uint64(63))
    return bits


@compiled()
def bloom_filter(values):
    size = 1
    while size * KEYS_OF_A_CELL <= len(values):
        size *= 2
    cells = np.zeros(size, np.uint64)
    for value in values:
        cells[value & np.uint64(size - 1)] |= bits_of(value)
    return cells


@compiled()
def may_have(cells, value):
    bits = bits_of(value)
    return cells[value & np.uint64(len(cells) - 1)] & bits == bits


@compiled()
def place_of(gram, grams, starts):
    """Where a hash stands among the sorted `grams`, -1 if it doesn't: starts[i] is the place of the first whose upper bits are i or more."""
    place = np.int64(starts[np.int64(gram >> np.uint64(32)) * len(starts) >> 32])
    while place < len(grams) and grams[place] < gram:
        place += 1
    return place if place < len(grams) and grams[place] == gram else -1


@compiled()
def find_grams(hashes, borders, grams, starts, part_filter, found):
    """Fills `found` with document · len(grams) + place of each run of words that is one of `grams`, and returns how many there are.

    Each run of `GRAM` words has just one part that begins at a multiple of `STRIDE` words. Where that is a measured one, its neighbours are looked up, and
    where so many in a row are measured that they make up a run, the run is.
    """
    count = 0
    for document in range(len(borders) - 1):
        begin, last = borders[document], borders[document + 1] - PART
        for part in range(begin, last + 1, STRIDE):
            if not may_have(part_filter, hash_of_run(hashes, part, PART)):
                continue
            left = right = part
            while left > max(begin, part - STRIDE + 1) and may_have(
                part_filter, hash_of_run(hashes, left - 1, PART)
            ):
                left -= 1
            while right < min(last, part + STRIDE - 1) and may_have(
                part_filter, hash_of_run(hashes, right + 1, PART)
            ):
                right += 1
            for first in range(left, right - STRIDE + 2):
                place = place_of(hash_of_run(hashes, first, GRAM), grams, starts)
                if place >= 0:
                    found[count] = document * len(grams) + place
                    count += 1
    return count
