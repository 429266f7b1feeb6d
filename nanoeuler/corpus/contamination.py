"""Training documents that quote what a model is measured on: any `GRAM` words in a row in common with held-out text or an evaluation set.

A run of words that more than `FREQUENT` training documents have (repetitions not counted) is nobody's leak but boilerplate: notices, navigation, set phrases.
Such runs are ignored (Brown et al. 2020, appendix C).

Words are those of words.py: lower case, without punctuation. A text with fewer words than that can be neither found nor quoted. Hashes of 64 bits stand
for the runs of words: one comparison in 10¹⁹ takes different runs for the same.

Memory for each run of words in the texts that are measured on: 13 bytes (40 while they are sorted), 2 to 4 for a filter that spares most searches, and at most
17 for each of the first `FREQUENT` documents that quote it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.words import finalise
from nanoeuler.errors import UserError

GRAM = 13  # words (Brown et al. 2020, appendix C)
FREQUENT = 10  # training documents
ROLL = np.uint64(0xD6E8FEB86659FD93)
ROLL_OUT = np.uint64(pow(int(ROLL), GRAM, 2**64))
NONE = 255
KEYS_OF_A_CELL = 4  # runs of words at most, on average, that share 64 bits of the filter


class Measured:
    """Texts that models are measured on, as a sorted row of hashes: sets of (name, hashes of their runs of words), several of one name being one set.

    A run of words that several sets have belongs to the first.
    """

    def __init__(self, sets: Sequence[tuple[str, np.ndarray]]):
        self.names = list(dict.fromkeys(name for name, _ in sets))
        assert len(self.names) < NONE
        sets = sorted(sets, key=lambda item: self.names.index(item[0]))
        grams = np.concatenate([np.zeros(0, np.uint64), *(grams for _, grams in sets)])
        owners = np.concatenate([np.zeros(0, np.uint8), *(np.full(len(grams), self.names.index(name), np.uint8) for name, grams in sets)])
        order = np.argsort(grams, kind="stable")
        grams, owners = grams[order], owners[order]
        first = np.ones(len(grams), bool)
        first[1:] = grams[1:] != grams[:-1]
        self.grams, self.owners = grams[first], owners[first]
        self.cells = np.zeros(1 << (len(self.grams) // KEYS_OF_A_CELL).bit_length(), np.uint64)
        fill_filter(self.grams, self.cells)

    def find(self, hashes: np.ndarray, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All quotations in documents given by their words, each of a document once: its number, and the run of words by its place in `grams` (int64 both)."""
        documents, runs = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
        count = find_grams(hashes, borders, self.grams, self.cells, documents, runs)
        documents, runs = documents[:count], runs[:count]
        order = np.lexsort((runs, documents))
        documents, runs = documents[order], runs[order]
        first = np.ones(count, bool)
        first[1:] = (documents[1:] != documents[:-1]) | (runs[1:] != runs[:-1])
        return documents[first], runs[first]


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


def read_evaluation_set(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The items of a file of JSON lines as documents: each one's texts together, in their order (a question, its input, its answer)."""
    documents = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                documents.append("\n".join(texts_in(json.loads(line))).encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fetch it first: nanoeuler questions, or nanoeuler task") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON lines ({error}); delete it and fetch it again") from error
    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([0, *map(len, documents)])


def texts_in(value: object) -> list[str]:
    """All texts in a JSON value, in their order."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_in(item)]


def hash_grams(hashes: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """The hashes (uint64) of all runs of `GRAM` words within the documents."""
    grams = np.empty(len(hashes), np.uint64)
    return grams[: fill_grams(hashes, borders, grams)]


@compiled()
def fill_grams(hashes, borders, grams):
    count = 0
    for document in range(len(borders) - 1):
        rolling = np.uint64(0)
        for at in range(borders[document], borders[document + 1]):
            rolling = rolling * ROLL + hashes[at]
            if at - borders[document] >= GRAM:
                rolling -= hashes[at - GRAM] * ROLL_OUT
            if at - borders[document] >= GRAM - 1:
                grams[count] = finalise(rolling)
                count += 1
    return count


@compiled()
def bits_of(gram):
    """The four bits of a cell that stand for a hash (a Bloom filter in blocks of 64 bits; Putze, Sanders and Singler 2007)."""
    one, six = np.uint64(1), np.uint64(0x3F)
    return one << (gram >> np.uint64(58)) | one << (gram >> np.uint64(52) & six) | one << (gram >> np.uint64(46) & six) | one << (gram >> np.uint64(40) & six)


@compiled()
def fill_filter(grams, cells):
    mask = np.uint64(len(cells) - 1)
    for gram in grams:
        cells[gram & mask] |= bits_of(gram)


@compiled()
def find_grams(hashes, borders, grams, cells, documents, found):
    count = 0
    mask = np.uint64(len(cells) - 1)
    for document in range(len(borders) - 1):
        rolling = np.uint64(0)
        first = borders[document]
        for at in range(first, borders[document + 1]):
            rolling = rolling * ROLL + hashes[at]
            if at - first >= GRAM:
                rolling -= hashes[at - GRAM] * ROLL_OUT
            if at - first < GRAM - 1:
                continue
            gram = finalise(rolling)
            bits = bits_of(gram)
            if cells[gram & mask] & bits != bits:
                continue
            where = np.searchsorted(grams, gram)
            if where < len(grams) and grams[where] == gram:
                documents[count] = document
                found[count] = where
                count += 1
    return count
