"""Find training documents that quote held-out text or an evaluation set.

A document quotes a text if both have any `GRAM` words in a row in common. A run of words in more
than `FREQUENT` training documents (duplicates not counted) is boilerplate and no leak: notices,
navigation, set phrases. Such runs are ignored (Brown et al. 2020, appendix C).

Words are those of word_hashes.py: lower case, without punctuation. A text of fewer words than
`GRAM` can be neither found nor quoted. Runs of words are compared by hashes of 64 bits: one
comparison in 10¹⁹ takes different runs for the same.

Not every run of a training document is searched for. Among the parts of `PART` words that begin at
every `STRIDE`th word of a document, each run of `GRAM` words holds one. Only around parts that the
measured texts have, too, are the runs searched for.

Memory for each run of words in the measured texts: 2 to 4 bytes, for the filter, but at most
`MOST_CELLS` · 8 of all. In a fuller filter more parts are found that no text has, so that more runs
are searched for on disk, and the result stays. On disk lie 48 bytes of each run while they are
sorted, then 15 to 17, at most 17 for each of the first `FREQUENT` documents that quote it, and a
byte for each document.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler.corpus.batches import Batch, gathered
from nanoeuler.corpus.word_hashes import finalise, hash_words
from nanoeuler.errors import UserError
from nanoeuler.storage.spilled import (
    BLOCK,
    COLUMNS,
    SortedRuns,
    blocks,
    disk_array,
    map_file,
    release,
)
from nanoeuler.system.compiling import compiled

GRAM = 13  # words (Brown et al. 2020, appendix C)
FREQUENT = 10  # training documents
STRIDE = 8  # words between the starts of two parts of a training document that are looked up
PART = GRAM - STRIDE + 1  # words of a part: `STRIDE` parts, one word apart, span `GRAM` words
ROLL = np.uint64(0xD6E8FEB86659FD93)
NONE, ONLY_FREQUENT = 255, 254  # instead of a set that a document quotes
MOST_SETS = ONLY_FREQUENT
QUOTATION = np.dtype([("document", "<i8"), ("run", "<i8"), ("owner", "u1")])
KEYS_OF_A_CELL = 4  # at most, on average: hashes that share 64 bits of the filter
MOST_CELLS = 1 << 29  # of the filter: 4.3 GB, which more than some 13 GB of text share


class Runs(NamedTuple):
    """The hashes (uint64) of all runs of `GRAM` words in some texts, and of `PART` words."""

    grams: np.ndarray
    parts: np.ndarray


NO_RUNS = Runs(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class Measured:
    """The texts that models are measured on, as sorted hashes of their runs of words.

    They are sets, given as (name, runs); sets of the same name are one set. A run of words that
    several sets have belongs to the first. All but the filter lies in `folder`.
    """

    names: list[str]
    part_filter: np.ndarray  # of `bloom_filter`
    grams: np.ndarray  # uint64, sorted
    owners: np.ndarray  # uint8: indices into `names`
    starts: np.ndarray  # uint64: see `index_of`

    def __init__(
        self,
        sets: Sequence[tuple[str, Runs]],
        folder: Path,
        part_filter: np.ndarray | None = None,
    ):
        """Sort the runs of some sets; `part_filter` is given if it has their parts already."""
        self.names = list(dict.fromkeys(name for name, _ in sets))
        if len(self.names) > MOST_SETS:
            raise UserError(
                f"evaluate: {len(self.names)} tasks and files of questions are more than "
                f"{MOST_SETS}, which corpus.decontaminate can tell apart; take some out"
            )
        inside = Path(tempfile.mkdtemp(dir=folder))
        if part_filter is None:
            part_filter = bloom_filter(sum(len(runs.parts) for _, runs in sets))
            for _, runs in sets:
                for rows in blocks(runs.parts):
                    add_to_filter(part_filter, np.asarray(runs.parts[rows]))
        self.part_filter = part_filter
        found = SortedRuns(inside / "sorted", bits=64, reduce=first_owners)
        for name, runs in sets:
            for rows in blocks(runs.grams):
                records = np.zeros((rows.stop - rows.start, COLUMNS), np.uint64)
                records[:, 0] = runs.grams[rows]
                records[:, 1] = self.names.index(name)
                found.add(records)
        found.finish()
        with open(inside / "grams", "wb") as grams, open(inside / "owners", "wb") as owners:
            for part in found.parts():
                records = found.read(part)
                grams.write(records[:, 0].tobytes())
                owners.write(records[:, 1].astype(np.uint8).data)
        found.remove()
        self.grams = map_file(inside / "grams", np.uint64)
        self.owners = map_file(inside / "owners", np.uint8)
        bits = max(1, len(self.grams).bit_length() - 2)
        self.starts = disk_array(inside / "starts", 1 << bits, np.uint64)
        for rows in blocks(self.starts):
            prefixes = np.arange(rows.start, rows.stop, dtype=np.uint64)
            self.starts[rows] = np.searchsorted(self.grams, prefixes << np.uint64(64 - bits))
            release(self.grams)

    def save(self, folder: Path) -> None:
        """Keep all that `load` needs in files of `folder`."""
        for name in Measured.__annotations__:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> "Measured":
        """Read what `save` has written. Raises `UserError` where nothing is there."""
        measured = cls.__new__(cls)
        for name in cls.__annotations__:
            file = folder / f"{name}.npy"
            if not file.exists():
                raise UserError(f"{file}: no such file; run the step that writes it first")
            on_disk = name in ("grams", "owners", "starts")
            setattr(measured, name, np.load(file, mmap_mode="c") if on_disk else np.load(file))
        measured.names = np.asarray(measured.names).tolist()
        return measured

    def find(self, hashes: np.ndarray, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the quotations in documents given by their words, each once per document.

        Returns their documents and their runs of words as indices into `grams` (both int64).
        """
        found = np.empty(len(hashes), np.int64)
        count = find_grams(hashes, borders, self.grams, self.starts, self.part_filter, found)
        return np.divmod(np.unique(found[:count]), max(1, len(self.grams)))


class Quotations:
    """The quotations of `measured` by the documents of a corpus, numbered across all sources.

    They lie in `folder`, but those of a run that has proved frequent are no longer collected.
    `first` (uint8, for each document) is where owners are entered; it is `NONE`.
    """

    def __init__(self, measured: Measured, first: np.ndarray, folder: Path):
        self.first = first
        # documents that have each run
        self.counts = disk_array(folder / "counts", len(measured.grams), np.int32)
        self.noted = folder / "noted"
        self.noted.touch()

    def add(self, documents: np.ndarray, runs: np.ndarray, owners: np.ndarray) -> None:
        """Add quotations by training documents that are no duplicates, each once per document.

        `owners` are the sets that they count for.
        """
        np.add.at(self.counts, runs, 1)
        self.first[documents] = ONLY_FREQUENT
        rare = self.counts[runs] <= FREQUENT
        with open(self.noted, "ab") as file:
            columns = documents[rare], runs[rare], owners[rare]
            file.write(np.rec.fromarrays(columns, QUOTATION).data)

    @property
    def ignored(self) -> int:
        """The number of frequent runs of words."""
        return sum(int((self.counts[rows] > FREQUENT).sum()) for rows in blocks(self.counts))

    def owners(self) -> np.ndarray:
        """Return for each document the first set that it quotes, as an index into `names`.

        It is `NONE` for a document that quotes nothing, and `ONLY_FREQUENT` where no run is rare.
        """
        with open(self.noted, "rb") as file:
            while len(some := np.fromfile(file, QUOTATION, BLOCK)):
                some = some[self.counts[some["run"]] <= FREQUENT]
                np.minimum.at(self.first, some["document"], some["owner"])
        return self.first


def read_evaluation_set(path: Path) -> Iterator[Batch]:
    """Read the items of a file of JSON lines as documents, in batches.

    The texts of an item (a question, its input, its answer) are joined in their order.
    """
    try:
        with open(path, encoding="utf-8") as file:
            items = ("\n".join(texts_in(json.loads(line))) for line in file)
            documents = (item.encode("utf-8", "replace") for item in items)
            yield from map(Batch.of, gathered(documents, len))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); fetch it first: "
            "nanoeuler questions, or nanoeuler task"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{path}: not JSON lines ({error}); delete it and fetch it again"
        ) from error


def texts_in(value: object) -> list[str]:
    """Return all texts in a JSON value, in their order."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_in(item)]


def hash_runs(hashes: np.ndarray, borders: np.ndarray) -> Runs:
    """Hash all runs of words within documents whose words are hashes[borders[i]:borders[i + 1]]."""
    return Runs(*(runs_of(hashes, borders, words) for words in (GRAM, PART)))


def runs_of_evaluation_set(path: Path, folder: Path) -> Runs:
    """Hash the runs of words in a file of JSON lines into files of `folder`."""
    inside = Path(tempfile.mkdtemp(dir=folder))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(inside / name, "wb")) for name in Runs._fields]
        for batch in read_evaluation_set(path):
            for file, column in zip(files, hash_runs(*hash_words(batch)), strict=True):
                file.write(column.data)
    return Runs(*(map_file(inside / name, np.uint64) for name in Runs._fields))


def first_owners(records: np.ndarray) -> np.ndarray:
    """Keep one of the records of each run of words, with the first of its owners."""
    first = np.flatnonzero(np.diff(records[:, 0], prepend=~records[:1, 0]))
    owners = np.minimum.reduceat(records[:, 1], first) if len(first) else records[:0, 1]
    records = records[first]
    records[:, 1] = owners
    return records


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
    """Return the four bits of a cell that represent a hash.

    The cells are a Bloom filter in blocks of 64 bits (Putze, Sanders and Singler 2007).
    """
    bits = np.uint64(0)
    for shift in (58, 52, 46, 40):
        bits |= np.uint64(1) << (value >> np.uint64(shift) & np.uint64(63))
    return bits


def bloom_filter(values: int) -> np.ndarray:
    """Return the cells of an empty filter for so many hashes."""
    size = 1
    while size * KEYS_OF_A_CELL <= values and size < MOST_CELLS:
        size *= 2
    return np.zeros(size, np.uint64)


@compiled()
def add_to_filter(cells, values):
    for value in values:
        cells[value & np.uint64(len(cells) - 1)] |= bits_of(value)


@compiled()
def may_have(cells, value):
    bits = bits_of(value)
    return cells[value & np.uint64(len(cells) - 1)] & bits == bits


@compiled()
def index_of(gram, grams, starts, lower):
    """Return the index of a hash in the sorted `grams`, or -1.

    starts[i] is the index of the first hash whose upper bits, without the `lower`, are i or more.
    """
    index = np.int64(starts[gram >> lower])
    while index < len(grams) and grams[index] < gram:
        index += 1
    return index if index < len(grams) and grams[index] == gram else -1


@compiled()
def find_grams(hashes, borders, grams, starts, part_filter, found):
    """Fill `found` with document · len(grams) + index of each run that is in `grams`.

    Each run of `GRAM` words holds just one part that begins at a multiple of `STRIDE` words. If the
    filter has that part, the adjacent parts are looked up, too. Only where the filter has all parts
    of a run is the run itself looked up. Returns the number of runs found.
    """
    lower = np.uint64(64)
    while len(starts) >> (np.uint64(64) - lower) > 1:
        lower -= np.uint64(1)
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
                index = index_of(hash_of_run(hashes, first, GRAM), grams, starts, lower)
                if index >= 0:
                    found[count] = document * len(grams) + index
                    count += 1
    return count
