"""Arrays on disk, and sorts of more records than memory holds, in a folder that its writer removes.

A record is three numbers, of which the first is its key. Records are sorted in runs of bounded
size, each written with the borders of `BUCKETS` equal ranges of keys, its buckets. Reading a range
takes its piece of every run, so that ranges can be read in any order, and by several threads.
"""

import bisect
import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.storage.files import explain_os_errors
from nanoeuler.storage.temporary import temporary_beside

COLUMNS = 3
RECORD_BYTES = 8 * COLUMNS
RUN = 1 << 20
"""Records that are sorted at a time: 25 MB, and some three times that meanwhile."""
PART = 1 << 21
"""Records that are read at a time; up to twice as many, or all of a single key."""
BUCKETS = 1 << 12
BLOCK = 1 << 22
"""Rows of an array on disk that are looked at together."""


@contextlib.contextmanager
def spill_folder(output: Path) -> Iterator[Path]:
    """Yield a temporary folder in `output`; a full disk becomes a `UserError`.

    What killed writers have left there is removed first.
    """
    with explain_os_errors(), temporary_beside(output / "spilled", folder=True) as folder:
        try:
            yield folder
        except OSError as error:
            error.filename = error.filename or str(output)  # writing does not name the file
            raise


def disk_array(path: Path, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros in a new file.

    The zeros are written: on a full disk a file with holes would end the process later.
    """
    count = int(np.prod(shape))
    with open(path, "wb") as file:
        for first in range(0, count, BLOCK):
            file.write(np.zeros(min(BLOCK, count - first), dtype).data)
    return map_file(path, dtype).reshape(shape)


def map_file(path: Path, dtype: Any) -> np.ndarray:
    """Return the numbers in a file, which may be changed."""
    return np.memmap(path, dtype, "r+") if path.stat().st_size else np.zeros(0, dtype)


def blocks(*arrays: np.ndarray) -> Iterator[slice]:
    """Yield slices of `BLOCK` rows of arrays of one length, which are released after each."""
    for first in range(0, len(arrays[0]), BLOCK):
        yield slice(first, min(first + BLOCK, len(arrays[0])))
        for array in arrays:
            release(array)


def release(array: np.ndarray) -> None:
    """Give back the memory that looking at an array on disk has taken."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


class SortedRuns:
    """Records, uint64 (records, `COLUMNS`), whose keys are below 2**bits; any thread may add some.

    After `finish` they can be read. Keys that differ in their lowest `together` bits alone are read
    together, if they are no more than twice `PART`. Of sorted records, `reduce` returns those that
    are kept: of each run, and again of what is read.
    """

    def __init__(
        self,
        path: Path,
        bits: int,
        together: int = 0,
        reduce: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ):
        self.path, self.borders = path, path.with_name(f"{path.name}.borders")
        self.shift = max(together, bits - BUCKETS.bit_length() + 1)
        self.reduce = reduce
        self.pending: list[np.ndarray] = []
        self.written = 0
        self.lock = threading.Lock()

    def add(self, records: np.ndarray) -> None:
        with self.lock:
            self.pending.append(records)
            if sum(map(len, self.pending)) >= RUN:
                self.finish()

    def finish(self) -> None:
        """Write what has been added, as a run."""
        records = np.ascontiguousarray(self.reduce(sort(self.pending)))
        self.pending = []
        starts = np.arange(BUCKETS, dtype=np.uint64) << np.uint64(self.shift)
        borders = np.append(np.searchsorted(records[:, 0], starts), len(records))
        with open(self.path, "ab") as file, open(self.borders, "ab") as of_run:
            file.write(records.data)
            of_run.write((self.written + borders).astype(np.int64).data)
        self.written += len(records)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.borders.unlink(missing_ok=True)

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of keys, in their order, of about `PART` records each: first, and end."""
        if not self.written:
            return []
        sizes = np.zeros(BUCKETS, np.int64)
        borders = map_file(self.borders, np.int64).reshape(-1, BUCKETS + 1)
        for of_run in borders:
            sizes += np.diff(of_run)
        part_of = np.cumsum(sizes) // PART
        edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), BUCKETS]
        return [
            part
            for first, stop in itertools.pairwise(edges)
            for part in self.split(first << self.shift, stop << self.shift)
        ]

    def split(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Halve a range of keys until it has at most twice `PART` records, or is a single key."""
        if stop - first == 1 or self.size(first, stop) <= 2 * PART:
            yield first, stop
            return
        unit = 1 << self.shift if stop - first > 1 << self.shift else 1
        middle = (first + stop) // 2 // unit * unit
        yield from self.split(first, middle)
        yield from self.split(middle, stop)

    def size(self, first: int, stop: int) -> int:
        return int((self.places(stop) - self.places(first)).sum())

    def places(self, key: int) -> np.ndarray:
        """The first record of each run, int64, that has this key or a higher one."""
        bucket, inside = divmod(key, 1 << self.shift)
        borders = map_file(self.borders, np.int64).reshape(-1, BUCKETS + 1)
        places = np.array(borders[:, bucket])
        if inside:
            keys = map_file(self.path, np.uint64)[::COLUMNS]
            stops = borders[:, bucket + 1]
            for run, (low, high) in enumerate(zip(places.tolist(), stops.tolist(), strict=True)):
                places[run] = bisect.bisect_left(keys, key, low, high)
        return places

    def read(self, part: tuple[int, int]) -> np.ndarray:
        """Return the records of a range of keys, sorted by them."""
        pieces = []
        places = RECORD_BYTES * np.stack([self.places(key) for key in part], axis=1)
        with open(self.path, "rb") as file:
            for first, stop in places.tolist():
                if first < stop:
                    piece = os.pread(file.fileno(), stop - first, first)
                    pieces.append(np.frombuffer(piece, np.uint64).reshape(-1, COLUMNS))
        return self.reduce(sort(pieces))


def sort(pieces: list[np.ndarray]) -> np.ndarray:
    """Concatenate records and sort them by their keys."""
    records = np.concatenate([np.zeros((0, COLUMNS), np.uint64), *pieces])
    return np.take(records, np.argsort(records[:, 0]), axis=0)  # faster than an index
