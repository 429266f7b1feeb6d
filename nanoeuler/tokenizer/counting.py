"""Count words in one pass and bounded memory.

Threads count batches of text separately. The tables of the batches are added in the order of the
text, so that the result is the same for any number of threads.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from nanoeuler import log
from nanoeuler.tokenizer.file_bytes import FileBytes
from nanoeuler.tokenizer.parallel import map_in_order
from nanoeuler.tokenizer.scanner import padded
from nanoeuler.tokenizer.word_table import WordTable

BATCH = 4 << 20  # bytes that are counted at a time
MOST_WORDS = 1_000_000  # distinct words held at a time; learning from them takes about 0.5 GB


class Piece(NamedTuple):
    """The text `data[start:stop]`, which begins and ends between words."""

    data: bytes | FileBytes
    start: int
    stop: int


def count_words(texts: Iterable[bytes], most: int = MOST_WORDS) -> WordTable:
    """Count the words of texts in memory; see `count_pieces`."""
    return count_pieces((Piece(text, 0, len(text)) for text in texts), most=most)


def count_pieces(
    pieces: Iterable[Piece],
    threads: int = 1,
    most: int = MOST_WORDS,
    progress: log.Progress | None = None,
) -> WordTable:
    """Count the words of all pieces.

    Beyond `most` distinct words the rarest are dropped, by lossy counting (Manku and Motwani 2002,
    section 4.2). Then counts are too low by at most the number of times that this happened, and the
    frequent words, which merges come from, stay.
    """
    total = WordTable()
    for counted in map_in_order(count_batch, batches(pieces), threads):
        total.add(counted)
        while len(total) > most:
            total.forget_rarest()
        if progress:
            progress.update(len(counted.text))
    return total


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.stop - piece.start
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def count_batch(batch: list[Piece]) -> WordTable:
    """Read the pieces into one text, adjacent ones in one call, and count its words."""
    text = padded(sum(piece.stop - piece.start for piece in batch))
    ends = np.cumsum([piece.stop - piece.start for piece in batch])
    at = first = 0
    for number, piece in enumerate(batch):
        following = batch[number + 1] if number + 1 < len(batch) else None
        if following is None or following.data is not piece.data or following.start != piece.stop:
            content = piece.data[batch[first].start : piece.stop]
            text[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at, first = at + len(content), number + 1
    table = WordTable(text)
    table.count(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1))  # (pieces, 2)
    return table
