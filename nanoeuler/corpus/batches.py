"""Documents by the batch: their bytes in one array, so that compiled code sees many at once, and several batches in work at one time."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

SIZE = 8_000_000  # bytes that documents are gathered up to, where they come one by one
Given, Made = TypeVar("Given"), TypeVar("Made")


@dataclass(frozen=True)
class Batch:
    """Document i is the UTF-8 bytes text[starts[i]:stops[i]]; `keys`, where the source gives some, say which must not be parted."""

    text: np.ndarray  # uint8
    starts: np.ndarray  # int64
    stops: np.ndarray  # int64
    keys: Sequence[str] | None = None

    @classmethod
    def of(cls, documents: Sequence[bytes], keys: Sequence[str] | None = None) -> "Batch":
        return cls.between(
            np.frombuffer(b"".join(documents), np.uint8),
            np.cumsum([0, *map(len, documents)], dtype=np.int64),
            keys,
        )

    @classmethod
    def between(
        cls, text: np.ndarray, offsets: np.ndarray, keys: Sequence[str] | None = None
    ) -> "Batch":
        """Documents one after another: i is text[offsets[i]:offsets[i + 1]]."""
        return cls(text, offsets[:-1], offsets[1:], keys)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> np.ndarray:
        return self.stops - self.starts

    def documents(self) -> Iterator[memoryview]:
        text = memoryview(self.text)
        return (
            text[start:stop]
            for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        )

    def hashes(self) -> list[bytes]:
        """The SHA-256 of each document."""
        return [hashlib.sha256(document).digest() for document in self.documents()]

    def runs(self) -> Iterator[memoryview]:
        """The texts of all documents in their order, neighbours together."""
        if not len(self):
            return iter(())
        parted = np.flatnonzero(self.starts[1:] != self.stops[:-1])
        starts, stops = self.starts[np.append(0, parted + 1)], self.stops[np.append(parted, -1)]
        return Batch(self.text, starts, stops).documents()

    def take(self, wanted: np.ndarray) -> "Batch":
        """The documents that `wanted` names (bool for each, or their numbers), without a copy."""
        return Batch(self.text, self.starts[wanted], self.stops[wanted])

    def cut(self, firsts: np.ndarray, lasts: np.ndarray) -> "Batch":
        """Bytes firsts[i]:lasts[i] of each document, without a copy."""
        return Batch(self.text, self.starts + firsts, self.starts + lasts)


def ordered_map(
    function: Callable[[Given], Made], items: Iterable[Given], threads: int
) -> Iterator[Made]:
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
