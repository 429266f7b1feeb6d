"""Documents by the batch: their bytes in one array, so that compiled code sees many at once, and several batches in work at one time."""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nanoeuler.compiling import compiled

SIZE = 8_000_000  # bytes that documents are gathered up to, where they come one by one
Given, Made = TypeVar("Given"), TypeVar("Made")


@dataclass(frozen=True)
class Batch:
    """Document i is the UTF-8 bytes text[offsets[i]:offsets[i + 1]]; `keys`, where the source gives some, say which must not be parted."""

    text: np.ndarray  # uint8
    offsets: np.ndarray  # int64, one more than documents, from 0
    keys: Sequence[str] | None = None

    @classmethod
    def of(cls, documents: Sequence[bytes], keys: Sequence[str] | None = None) -> "Batch":
        return cls(np.frombuffer(b"".join(documents), np.uint8), np.cumsum([0, *map(len, documents)], dtype=np.int64), keys)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def hashes(self) -> list[bytes]:
        """The SHA-256 of each document."""
        text, offsets = memoryview(self.text), self.offsets.tolist()
        return [hashlib.sha256(text[start:stop]).digest() for start, stop in itertools.pairwise(offsets)]

    def document(self, index: int) -> np.ndarray:
        return self.text[self.offsets[index] : self.offsets[index + 1]]

    def pieces(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> "Batch":
        """Bytes starts[i]:stops[i] of each of the given documents."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
        text = np.empty(offsets[-1], np.uint8)
        gather(self.text, self.offsets[documents] + starts, offsets, text)
        return Batch(text, offsets)

    def runs(self, wanted: np.ndarray) -> Iterator[memoryview]:
        """The texts that `wanted` (bool) marks, neighbours together, without a copy."""
        edges = np.flatnonzero(np.diff(wanted.view(np.int8), prepend=0, append=0))
        text = memoryview(self.text)
        return (text[start:stop] for start, stop in self.offsets[edges].reshape(-1, 2).tolist())

    def take(self, wanted: np.ndarray) -> "Batch":
        """The documents that `wanted` (bool) marks."""
        if wanted.all():
            return self
        documents = np.flatnonzero(wanted)
        return self.pieces(documents, np.zeros(len(documents), np.int64), self.sizes[documents])


@compiled()
def gather(text, starts, offsets, gathered):
    for piece in range(len(starts)):
        size = offsets[piece + 1] - offsets[piece]
        gathered[offsets[piece] : offsets[piece + 1]] = text[starts[piece] : starts[piece] + size]


def ordered_map(function: Callable[[Given], Made], items: Iterable[Given], threads: int) -> Iterator[Made]:
    """`function` of each item, in their order, in several threads. No more than one item per thread, and one, is held in memory."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
