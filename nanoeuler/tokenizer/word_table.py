"""Counting distinct words in compiled code: a hash table that keeps no copy of a word whose text stays at hand.

A word is a record of four numbers: hash, where it starts in `text`, length in bytes, count. `slots` holds indices of records, found by
linear probing from the hash on (Knuth 1998, volume 3, section 6.4), and -1 where there is none.
"""

from collections.abc import Iterator

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.tokenizer.scanner import (
    CLASSES,
    FIRST_BYTES,
    LENT,
    PADDING,
    eight_bytes_at,
    padded,
    word_end,
)

HASH, START, LENGTH, COUNT = range(4)
EMPTY = -1
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, odd
HALF = np.uint64(32)


class WordTable:
    """Distinct words with their counts."""

    def __init__(self, text: np.ndarray | None = None, room: int = 1 << 14):
        """A table of no words: of those that `count` will find in the padded bytes `text`, or of those that `add` will bring."""
        self.text = padded(1 << 16) if text is None else text
        self.end = 0  # bytes of `text` that added words take
        self.size = 0
        self.records = np.empty((room, 4), np.int64)
        self.slots = np.full(2 * room, EMPTY, np.int32)

    def __len__(self) -> int:
        return self.size

    def items(self) -> Iterator[tuple[bytes, int]]:
        for _, start, length, count in self.records[: self.size].tolist():
            yield self.text[start : start + length].tobytes(), count

    def count(self, borders: np.ndarray) -> None:
        """Count the words of the pieces of text between `borders`, int64 (pieces, 2)."""
        progress = np.array(
            [0, borders[0, 0] if len(borders) else 0, self.size]
        )  # piece, place in it, words found
        while not count_pieces(
            self.text,
            eight_bytes_at(self.text),
            borders,
            CLASSES,
            self.slots,
            self.records,
            progress,
        ):
            self.size = int(progress[2])
            self.reserve(2 * self.size)
        self.size = int(progress[2])

    def add(self, other: "WordTable") -> None:
        """Add the words and counts of another table."""
        self.reserve(self.size + other.size)
        end = self.end + int(other.records[: other.size, LENGTH].sum())
        if end > len(self.text) - PADDING:
            self.text = np.concatenate([self.text, padded(max(end, len(self.text)))])
        self.size, self.end = add_words(
            self.text,
            eight_bytes_at(self.text),
            self.slots,
            self.records,
            self.size,
            self.end,
            other.text,
            eight_bytes_at(other.text),
            other.records[: other.size],
        )

    def reserve(self, words: int) -> None:
        """Make room for so many words."""
        if words > len(self.records):
            records = np.empty((max(words, 2 * len(self.records)), 4), np.int64)
            records[: self.size] = self.records[: self.size]
            self.records = records
            self.slots = np.full(1 << (2 * len(records) - 1).bit_length(), EMPTY, np.int32)
            index_words(self.slots, self.records, self.size)

    def forget_rarest(self) -> None:
        """Take one off every count, and the words out whose count was one."""
        self.size, self.end = forget_words(self.text, self.records, self.size)
        self.slots[:] = EMPTY
        index_words(self.slots, self.records, self.size)


@compiled(**LENT)
def hash_word(eight, at, length):
    """uint64: every bit depends on every byte, the upper ones most."""
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
    """The slot of a word of hash `value`, or the empty one where it belongs. `texts` is where records point to, `eight` where the word stands."""
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
def count_pieces(data, eight, borders, classes, slots, records, progress):
    """Count on from where `progress` stands. False when a new word found no room among the records: give more and call again."""
    piece, at, size = progress[0], progress[1], progress[2]
    finished = True
    while finished and piece < len(borders):
        stop = borders[piece, 1]
        while at < stop:
            end = word_end(data, at, stop, classes)
            value = np.int64(hash_word(eight, at, end - at))
            slot = find_word(slots, records, eight, value, eight, at, end - at)
            if slots[slot] == EMPTY:
                if size == len(records):
                    finished = False
                    break
                slots[slot] = size
                (
                    records[size, HASH],
                    records[size, START],
                    records[size, LENGTH],
                    records[size, COUNT],
                ) = value, at, end - at, 0
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
    """Add `others`, which point into `other_text`. Returns the number of words and the end of `text`, for which there must be room."""
    for index in range(len(others)):
        value, start, length = others[index, HASH], others[index, START], others[index, LENGTH]
        slot = find_word(slots, records, texts, value, other_eight, start, length)
        if slots[slot] == EMPTY:
            slots[slot] = size
            (
                records[size, HASH],
                records[size, START],
                records[size, LENGTH],
                records[size, COUNT],
            ) = value, text_end, length, 0
            for place in range(length):
                text[text_end + place] = other_text[start + place]
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
    """Move the words that stay to the front. Their starts rise, so that no byte is overwritten before it has moved."""
    kept = text_end = 0
    for index in range(size):
        if records[index, COUNT] > 1:
            start, length = records[index, START], records[index, LENGTH]
            for place in range(length):
                text[text_end + place] = text[start + place]
            records[kept, HASH], records[kept, START], records[kept, LENGTH] = (
                records[index, HASH],
                text_end,
                length,
            )
            records[kept, COUNT] = records[index, COUNT] - 1
            kept += 1
            text_end += length
    return kept, text_end
