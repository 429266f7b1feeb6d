"""Batches of documents, their bytes in one array.

Compiled code works on many documents of a batch at once, and threads on several batches.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

SIZE = 8_000_000  # bytes up to which single documents are gathered in a batch
Given = TypeVar("Given")


@dataclass(frozen=True)
class Batch:
    """Documents: number i is the UTF-8 bytes text[starts[i]:stops[i]].

    Documents with the same key must be on one side of the split (split.py); `keys` is None where
    the source gives none.
    """

    text: np.ndarray  # uint8
    starts: np.ndarray  # int64
    stops: np.ndarray  # int64
    keys: Sequence[str] | None = None

    @classmethod
    def of(cls, documents: Sequence[bytes], keys: Sequence[str] | None = None) -> "Batch":
        text = np.frombuffer(b"".join(documents), np.uint8)
        return cls.between(text, np.cumsum([0, *map(len, documents)], dtype=np.int64), keys)

    @classmethod
    def between(
        cls, text: np.ndarray, offsets: np.ndarray, keys: Sequence[str] | None = None
    ) -> "Batch":
        """Batch documents that follow one another: i is text[offsets[i]:offsets[i + 1]]."""
        return cls(text, offsets[:-1], offsets[1:], keys)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> np.ndarray:
        return self.stops - self.starts

    def documents(self) -> Iterator[memoryview]:
        text = self.text.data
        borders = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return (text[start:stop] for start, stop in borders)

    def hashes(self) -> list[bytes]:
        """Return the SHA-256 of each document."""
        return [hashlib.sha256(document).digest() for document in self.documents()]

    def runs(self) -> Iterator[memoryview]:
        """Return the texts of all documents in their order, adjacent ones as one."""
        if not len(self):
            return iter(())
        gaps = np.flatnonzero(self.starts[1:] != self.stops[:-1])
        starts = self.starts[np.append(0, gaps + 1)]
        stops = self.stops[np.append(gaps, -1)]
        return Batch(self.text, starts, stops).documents()

    def take(self, wanted: np.ndarray) -> "Batch":
        """Select documents by a bool for each or by their numbers, without a copy."""
        return Batch(self.text, self.starts[wanted], self.stops[wanted])

    def cut(self, firsts: np.ndarray, lasts: np.ndarray) -> "Batch":
        """Select bytes firsts[i]:lasts[i] of each document, without a copy."""
        return Batch(self.text, self.starts + firsts, self.starts + lasts)


def gathered(items: Iterable[Given], size_of: Callable[[Given], int]) -> Iterator[list[Given]]:
    """Yield the items in lists of which each has `SIZE` bytes, or what is left."""
    some: list[Given] = []
    size = 0
    for item in items:
        some.append(item)
        size += size_of(item)
        if size >= SIZE:
            yield some
            some, size = [], 0
    if some:
        yield some
