"""Text as a row of hashed words: what near-duplicates and quotations are recognised by.

A word is a run of letters, digits and combining marks, in lower case; everything between (spaces, line ends, punctuation, symbols) only parts words, so that
"Don't stop!" and "don’t  STOP" are the same three words don, t, stop. Chinese characters and Japanese kana, which are written without
spaces, are a word each. What a letter is comes from Unicode 3.2, which every Python carries beside its own version and which never
changes; code points that are younger count as letters outside the areas of symbols.

A word's hash is FNV-1a (64 bits) over its code points.
"""

import functools
import unicodedata

import numpy as np

from nanoeuler.compiling import compiled

TABLE = 0x20000  # code points with an entry of their own; from here on up to tags and private use there are only Chinese characters
TAGS = 0xE0000
ALONE = 1 << 31  # marks a code point that is a word by itself
SYMBOLS = ((0x2000, 0x2C00), (0x2E00, 0x2E80), (0xE000, 0xF900), (0xFE00, 0xFE10), (0x1D000, 0x1D400), (0x1F000, 0x1FB00))
IDEOGRAPHS = ((0x3041, 0x30FB), (0x30FD, 0x3100), (0x31F0, 0x3200), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00))
FNV_OFFSET, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@functools.cache
def letter_table() -> np.ndarray:
    """For each code point below `TABLE`: 0 where it parts words, else its lower case, with the bit `ALONE` where it is a word."""
    table = np.zeros(TABLE, np.uint32)
    for code in range(TABLE):
        category = unicodedata.ucd_3_2_0.category(chr(code))
        if category[0] in "LNM" or (category == "Cn" and code > 0x7F and not within(code, SYMBOLS)):
            lower = chr(code).lower() if category == "Lu" else ""
            table[code] = (ord(lower) if len(lower) == 1 else code) | (ALONE if within(code, IDEOGRAPHS) else 0)
    return table


def within(code: int, areas: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code < end for first, end in areas)


def hash_words(text: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hashes (uint64) of all words of the documents text[offsets[i]:offsets[i + 1]] (UTF-8 bytes), and where each document's begin among them."""
    hashes = np.empty(len(text) // 2 + len(offsets) + 1, np.uint64)  # a word has a byte and one that parts it, or three bytes
    borders = np.empty(len(offsets), np.int64)
    count = fill_words(text, offsets, letter_table(), hashes, borders)
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
def fill_words(text, offsets, table, hashes, borders):
    """The loop over ASCII has no branch that text could mislead: every byte's hash is written, and counted where a word ends."""
    count = np.uint64(0)
    one = np.uint64(1)
    ascii = table[:128].astype(np.uint64)
    for document in range(len(offsets) - 1):
        borders[document] = count
        at, end = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        word, inside = FNV_OFFSET, np.uint64(0)
        while at < end:
            byte = np.uint32(text[at])
            at += one
            if byte < 0x80:
                letter = ascii[byte]
                hashes[count] = word
                is_letter = np.uint64(letter != 0)
                count += inside & (is_letter ^ one)
                word = (word ^ letter) * FNV_PRIME if letter != 0 else FNV_OFFSET
                inside = is_letter
                continue
            following = np.uint32(1 if byte < 0xE0 else 2 if byte < 0xF0 else 3)  # UTF-8: so many bytes follow, each with six bits
            code = byte & (np.uint32(0x3F) >> following)
            while following > 0 and at < end:
                code = np.uint32((code << np.uint32(6)) | (np.uint32(text[at]) & np.uint32(0x3F)))
                at += one
                following -= np.uint32(1)
            if code < TABLE:
                letter = np.uint64(table[code])
            else:
                letter = np.uint64(code | ALONE) if code < TAGS else np.uint64(0)
            if letter != 0 and letter < ALONE:
                word = (word ^ letter) * FNV_PRIME
                inside = one
                continue
            hashes[count] = word
            count += inside
            if letter != 0:
                hashes[count] = (FNV_OFFSET ^ letter) * FNV_PRIME
                count += one
            word, inside = FNV_OFFSET, np.uint64(0)
        hashes[count] = word
        count += inside
    borders[len(offsets) - 1] = count
    return count
