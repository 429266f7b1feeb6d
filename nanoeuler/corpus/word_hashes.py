"""Text as a row of hashed words: what near-duplicates and quotations are recognised by.

A word is a run of letters, digits and combining marks, in lower case; everything between (spaces, line ends, punctuation, symbols) only parts words, so that
"Don't stop!" and "don’t  STOP" are the same three words don, t, stop. Chinese characters and Japanese kana, which are written without
spaces, are a word each. What a letter is comes from Unicode 3.2, which every Python carries beside its own version and which never
changes; code points that are younger count as letters outside the areas of symbols.

Compiled code looks at eight bytes at a time. Of each document a copy is made in which ASCII letters and digits are in lower case and what parts words is a zero
byte; so a word of up to seven letters is one number, and where it ends is found by arithmetic (Mycroft's test for a zero byte). Only longer words and
those with other letters are gone through one by one. A word's hash is made of its ASCII letters, eight at a time, and of each other code point.
"""

import functools
import unicodedata

import numpy as np

from nanoeuler.compiling import compiled
from nanoeuler.corpus.batches import Batch

TABLE = 0x20000  # code points with an entry of their own; from here on up to tags and private use there are only Chinese characters
TAGS = 0xE0000
ALONE = 1 << 31  # marks a code point that is a word by itself
SYMBOLS = (
    (0x2000, 0x2C00),
    (0x2E00, 0x2E80),
    (0xE000, 0xF900),
    (0xFE00, 0xFE10),
    (0x1D000, 0x1D400),
    (0x1F000, 0x1FB00),
)
IDEOGRAPHS = (
    (0x3041, 0x30FB),
    (0x30FD, 0x3100),
    (0x31F0, 0x3200),
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
)
SEED, MULTIPLIER = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)
LOW_BITS, HIGH_BITS = (
    np.uint64(0x0101010101010101),
    np.uint64(0x8080808080808080),
)  # of each of eight bytes
COUNTS = np.uint64(0x0102030405060708)  # multiplied by 256**i, the top byte is i + 1
NO_ASCII = np.uint64(0xFF)  # the low byte of a code point's number, which no ASCII letter has
ONE, SEVEN, EIGHT, HALF, TOP = (
    np.uint64(1),
    np.uint64(7),
    np.uint64(8),
    np.uint64(32),
    np.uint64(56),
)


@functools.cache
def letter_table() -> np.ndarray:
    """For each code point below `TABLE`: 0 where it parts words, else its lower case, with the bit `ALONE` where it is a word."""
    category = unicodedata.ucd_3_2_0.category
    kinds = np.array([category(chr(code)) for code in range(TABLE)])
    unknown = (kinds == "Cn") & ~within(SYMBOLS)
    unknown[:0x80] = False
    table = np.arange(TABLE, dtype=np.uint32)
    for code in np.flatnonzero(kinds == "Lu").tolist():
        lower = chr(code).lower()
        table[code] = ord(lower) if len(lower) == 1 else code
    table[within(IDEOGRAPHS)] |= np.uint32(ALONE)
    table[~(np.isin(kinds.astype("U1"), ["L", "N", "M"]) | unknown)] = 0
    return table


def within(areas: tuple[tuple[int, int], ...]) -> np.ndarray:
    """For each code point below `TABLE` whether it is in one of the areas (bool)."""
    inside = np.zeros(TABLE, bool)
    for first, end in areas:
        inside[first:end] = True
    return inside


def hash_words(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The hashes (uint64) of all words of the documents, and where each document's begin among them (int64, one more than documents)."""
    hashes = np.empty(
        int(batch.sizes.sum()) // 2 + len(batch) + 1, np.uint64
    )  # a word has a byte and one that parts it, or three bytes
    borders = np.empty(len(batch) + 1, np.int64)
    folded = np.empty(int(batch.sizes.max(initial=0)) + 8, np.uint8)
    eight = np.lib.stride_tricks.as_strided(
        folded[:8].view("<u8"), (len(folded) - 7,), (1,), writeable=False
    )  # the eight bytes from each byte on
    count = fill_words(
        batch.text, batch.starts, batch.stops, letter_table(), folded, eight, hashes, borders
    )
    return hashes[:count], borders


@compiled()
def finalise(value):
    """MurmurHash3's 64-bit finaliser: every bit of the result depends on every bit of `value`."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@compiled()
def mix(value, letters):
    value = (value ^ letters) * MULTIPLIER
    return value ^ value >> HALF


@compiled()
def fold(text, folded):
    """ASCII letters in lower case, digits and bytes of other characters as they are, a zero for all else."""
    for at in range(len(text)):
        byte = text[at]
        lower = np.uint8(byte | np.uint8(0x20))
        if np.uint8(lower - np.uint8(ord("a"))) < np.uint8(26):
            folded[at] = lower
        else:
            folded[at] = (
                byte
                if np.uint8(byte - np.uint8(ord("0"))) < np.uint8(10) or byte >= np.uint8(0x80)
                else np.uint8(0)
            )
    folded[len(text) : len(text) + 8] = 0


@compiled()
def fill_words(text, starts, stops, table, folded, eight, hashes, borders):
    """The loop has no branch that English could mislead: every eight bytes' hash is written, and counted where a word ends in them."""
    count = np.uint64(0)
    for document in range(len(starts)):
        borders[document] = count
        size = np.uint64(stops[document] - starts[document])
        fold(text[starts[document] : stops[document]], folded)
        first, at, word = np.uint64(0), np.uint64(0), SEED
        while at <= size:
            letters = eight[at]
            zeros = (
                (letters - LOW_BITS) & ~letters & HIGH_BITS
            )  # the lowest bit set is that of the first zero byte
            end = (zeros & (np.uint64(0) - zeros)) >> SEVEN  # 256**length; 0 where there is none
            letters &= end - ONE
            if letters & HIGH_BITS != 0:
                at, count = spell(folded, first, table, hashes, count)
                first, word = at, SEED
                continue
            is_end = end != 0
            is_word = (letters | (word ^ SEED)) != 0
            word = mix(word, letters)
            hashes[count] = word
            count += np.uint64(is_end & is_word)
            at += end * COUNTS >> TOP if is_end else EIGHT
            first, word = (at, SEED) if is_end else (first, word)
    borders[len(starts)] = count
    return count


@compiled()
def spell(folded, at, table, hashes, count):
    """The words from `at` to the next zero byte, character by character. Returns where to go on, and the count of words."""
    word, letters, shift = SEED, np.uint64(0), np.uint64(0)
    inside = False
    while folded[at] != 0:
        letter, at = letter_at(folded, at, table)
        if letter == 0 or letter >= ALONE:
            hashes[count] = mix(word, letters)
            count += np.uint64(inside)
            word, letters, shift, inside = SEED, np.uint64(0), np.uint64(0), False
            if letter != 0:
                hashes[count] = mix(SEED, letter << EIGHT | NO_ASCII)
                count += ONE
        elif letter < 0x80:
            letters |= letter << shift
            shift += EIGHT
            inside = True
            if shift == 64:
                word, letters, shift = mix(word, letters), np.uint64(0), np.uint64(0)
        else:
            word, letters, shift = (
                mix(mix(word, letters), letter << EIGHT | NO_ASCII),
                np.uint64(0),
                np.uint64(0),
            )
            inside = True
    hashes[count] = mix(word, letters)
    return at + ONE, count + np.uint64(inside)


@compiled()
def letter_at(folded, at, table):
    """What `letter_table` says of the character at `at`, and where the next one begins."""
    byte = np.uint32(folded[at])
    at += ONE
    if byte < 0x80:
        return np.uint64(byte), at
    following = np.uint32(
        1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
    )  # UTF-8: so many bytes follow, each with six bits
    code = byte & (np.uint32(0x3F) >> following)
    while following > 0 and folded[at] >= 0x80:
        code = np.uint32((code << np.uint32(6)) | (np.uint32(folded[at]) & np.uint32(0x3F)))
        at += ONE
        following -= np.uint32(1)
    if code < TABLE:
        return np.uint64(table[code]), at
    return np.uint64(code | ALONE) if code < TAGS else np.uint64(0), at
