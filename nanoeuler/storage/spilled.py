"""Arrays on disk, and sorts of more records than memory holds, in a folder that its writer removes.

A record is three numbers, of which the first is its key. Records are sorted in runs of bounded
size, each written with the borders of `BUCKETS` equal ranges of keys. Reading a range takes its
piece of every run, so that ranges can be read in any order, and by several threads.
"""

import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Iterator
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
"""Records that are read at a time, unless a single bucket has more."""
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
    together.
    """

    def __init__(self, path: Path, bits: int, together: int = 0):
        self.path = path
        self.shift = max(together, bits - BUCKETS.bit_length() + 1)
        self.pending: list[np.ndarray] = []
        self.runs: list[tuple[int, np.ndarray]] = []  # first record, and uint32 borders after it
        self.written = 0
        self.lock = threading.Lock()

    def add(self, records: np.ndarray) -> None:
        with self.lock:
            self.pending.append(records)
            if sum(map(len, self.pending)) >= RUN:
                self.finish()

    def finish(self) -> None:
        """Write what has been added, as a run."""
        records = sort(self.pending)
        self.pending = []
        starts = np.arange(BUCKETS + 1, dtype=np.uint64) << np.uint64(self.shift)
        borders = np.searchsorted(records[:, 0], starts).astype(np.uint32)
        borders[-1] = len(records)
        self.runs.append((self.written, borders))
        self.written += len(records)
        with open(self.path, "ab") as file:
            file.write(records.data)

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of buckets, in the order of their keys, of about `PART` records each."""
        if not self.written:
            return []
        sizes = sum((np.diff(borders).astype(np.int64) for _, borders in self.runs), start=0)
        part_of = np.cumsum(sizes) // PART
        edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), BUCKETS]
        return list(itertools.pairwise(edges))

    def read(self, part: tuple[int, int]) -> np.ndarray:
        """Return the records in a range of buckets, sorted by their keys."""
        first, stop = part
        pieces = []
        with open(self.path, "rb") as file:
            for start, borders in self.runs:
                size = RECORD_BYTES * int(borders[stop] - borders[first])
                if size:
                    offset = RECORD_BYTES * (start + int(borders[first]))
                    piece = os.pread(file.fileno(), size, offset)
                    pieces.append(np.frombuffer(piece, np.uint64).reshape(-1, COLUMNS))
        return sort(pieces)


def sort(pieces: list[np.ndarray]) -> np.ndarray:
    """Concatenate records and sort them by their keys."""
    records = np.concatenate([np.zeros((0, COLUMNS), np.uint64), *pieces])
    return np.take(records, np.argsort(records[:, 0]), axis=0)  # faster than an index
