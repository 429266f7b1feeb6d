"""Count words in one pass and bounded memory, in compiled code.

Threads count batches of text separately. The tables of the batches are added in the order of the
text, so that the result is the same for any number of threads.

A table points into the counted text. A word is a record of four numbers: hash, offset in `text`,
length in bytes, count. `slots` holds indices of records, or -1. The slot of a word is found by
linear probing from its hash (Knuth 1998, volume 3, section 6.4).
"""

from collections.abc import Iterable, Iterator

import numpy as np

from nanoeuler import log
from nanoeuler.system.compiling import compiled
from nanoeuler.system.threads import ordered_map
from nanoeuler.tokenizer.corpus_text import AHEAD, Piece
from nanoeuler.tokenizer.scanner import (
    CLASSES,
    FIRST_BYTES,
    LENT,
    PADDING,
    eight_bytes_at,
    padded,
    word_end,
)

BATCH = 4 << 20  # bytes that are counted at a time
MOST_WORDS = 1_000_000  # distinct words held at a time; learning from them takes about 0.5 GB
ROOM = 1 << 14  # words of a new table
HASH, START, LENGTH, COUNT = range(4)
EMPTY = -1
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, odd
HALF = np.uint64(32)


class WordTable:
    """Distinct words with their counts."""

    def __init__(self, text: np.ndarray | None = None):
        """Make an empty table, to `count` words of the padded bytes `text` or to `add` others."""
        self.text = padded(1 << 16) if text is None else text
        self.end = 0  # bytes of `text` that added words take
        self.size = 0
        self.records = np.empty((ROOM, 4), np.int64)
        self.slots = np.full(2 * ROOM, EMPTY, np.int32)

    def __len__(self) -> int:
        return self.size

    def items(self) -> Iterator[tuple[bytes, int]]:
        for _, start, length, count in self.records[: self.size].tolist():
            yield self.text[start : start + length].tobytes(), count

    def count(self, borders: np.ndarray) -> None:
        """Count the words of the pieces of text between `borders`, int64 (pieces, 2)."""
        first = borders[0, 0] if len(borders) else 0
        progress = np.array([0, first, self.size])  # piece, offset, words found
        text = self.text, eight_bytes_at(self.text), borders
        while not count_borders(*text, CLASSES, self.slots, self.records, progress):
            self.size = int(progress[2])
            self.reserve(2 * self.size)
        self.size = int(progress[2])

    def add(self, other: "WordTable") -> None:
        """Add the words and counts of another table."""
        self.reserve(self.size + other.size)
        end = self.end + int(other.records[: other.size, LENGTH].sum())
        if end > len(self.text) - PADDING:
            self.text = np.concatenate([self.text, padded(max(end, len(self.text)))])
        added = other.text, eight_bytes_at(other.text), other.records[: other.size]
        self.size, self.end = add_words(
            self.text, eight_bytes_at(self.text), self.slots, self.records, self.size, self.end,
            *added,
        )  # fmt: skip

    def reserve(self, words: int) -> None:
        if words > len(self.records):
            records = np.empty((max(words, 2 * len(self.records)), 4), np.int64)
            records[: self.size] = self.records[: self.size]
            self.records = records
            self.slots = np.full(1 << (2 * len(records) - 1).bit_length(), EMPTY, np.int32)
            index_words(self.slots, self.records, self.size)

    def forget_rarest(self) -> None:
        """Subtract one from every count, and remove the words whose count was one."""
        self.size, self.end = forget_words(self.text, self.records, self.size)
        self.slots[:] = EMPTY
        index_words(self.slots, self.records, self.size)


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
    for counted in ordered_map(count_batch, batches(pieces), threads, AHEAD):
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


@compiled(**LENT)
def hash_word(eight, at, length):
    """Return a uint64 of which every bit depends on every byte, the upper bits most."""
    value = np.uint64(length)
    while length >= 8:
        value = (value ^ eight[at]) * MULTIPLIER
        value ^= value >> HALF
        at += 8
        length -= 8
    value = (value ^ (eight[at] & FIRST_BYTES[length])) * MULTIPLIER
    return value ^ value >> HALF


@compiled(**LENT)
def same_bytes(eight, at, others, there, length):
    while length >= 8:
        if eight[at] != others[there]:
            return False
        at += 8
        there += 8
        length -= 8
    return (eight[at] ^ others[there]) & FIRST_BYTES[length] == 0


@compiled(**LENT)
def find_word(slots, records, texts, value, eight, at, length):
    """Return the slot of a word of hash `value`, or the empty slot for it.

    The word is at `at` of `eight`; the records point into `texts`.
    """
    slot = value & (len(slots) - 1)
    while slots[slot] != EMPTY:
        record = slots[slot]
        if (
            records[record, HASH] == value
            and records[record, LENGTH] == length
            and same_bytes(texts, records[record, START], eight, at, length)
        ):
            break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@compiled(**LENT)
def count_borders(data, eight, borders, classes, slots, records, progress):
    """Continue counting from `progress`.

    Returns False if there is no record left for a new word: the caller makes room and calls again.
    """
    piece, at, size = progress[0], progress[1], progress[2]
    finished = True
    while finished and piece < len(borders):
        stop = borders[piece, 1]
        while at < stop:
            end = word_end(data, eight, at, stop, classes)
            value = np.int64(hash_word(eight, at, end - at))
            slot = find_word(slots, records, eight, value, eight, at, end - at)
            if slots[slot] == EMPTY:
                if size == len(records):
                    finished = False
                    break
                slots[slot] = size
                records[size, HASH], records[size, START] = value, at
                records[size, LENGTH], records[size, COUNT] = end - at, 0
                size += 1
            records[slots[slot], COUNT] += 1
            at = end
        if finished:
            piece += 1
            at = borders[piece, 0] if piece < len(borders) else 0
    progress[0], progress[1], progress[2] = piece, at, size
    return finished


@compiled(**LENT)
def add_words(text, texts, slots, records, size, text_end, other_text, other_eight, others):
    """Add `others`, which point into `other_text`; there must be room for them.

    Returns the number of words and the end of the used part of `text`.
    """
    for index in range(len(others)):
        value, start, length = others[index, HASH], others[index, START], others[index, LENGTH]
        slot = find_word(slots, records, texts, value, other_eight, start, length)
        if slots[slot] == EMPTY:
            slots[slot] = size
            records[size, HASH], records[size, START] = value, text_end
            records[size, LENGTH], records[size, COUNT] = length, 0
            for byte in range(length):
                text[text_end + byte] = other_text[start + byte]
            size += 1
            text_end += length
        records[slots[slot], COUNT] += others[index, COUNT]
    return size, text_end


@compiled(**LENT)
def index_words(slots, records, size):
    """Fill empty `slots` with the first `size` records."""
    for record in range(size):
        slot = records[record, HASH] & (len(slots) - 1)
        while slots[slot] != EMPTY:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = record


@compiled(**LENT)
def forget_words(text, records, size):
    """Move the remaining words to the front.

    Their offsets rise, so that no byte is overwritten before it has moved.
    """
    kept = text_end = 0
    for index in range(size):
        if records[index, COUNT] > 1:
            start, length = records[index, START], records[index, LENGTH]
            for byte in range(length):
                text[text_end + byte] = text[start + byte]
            records[kept, HASH] = records[index, HASH]
            records[kept, START], records[kept, LENGTH] = text_end, length
            records[kept, COUNT] = records[index, COUNT] - 1
            kept += 1
            text_end += length
    return kept, text_end
