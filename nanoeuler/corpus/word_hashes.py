"""Hash the words of documents, so that near-duplicates and quotations can be found.

A word is a run of letters, digits and combining marks, in lower case. Everything else (spaces, line
ends, punctuation, symbols) only separates words, so that "Don't stop!" and "don’t  STOP" are the
same three words don, t, stop. Scripts without spaces:

- a Chinese character or Japanese kana is a word, with its marks;
- text of Thai, Lao, Khmer, Burmese and their relatives is cut between two letters where a hash of
  the two is a multiple of `UNSPACED_LETTERS`, so that about as many letters are a word, which takes
  as many bytes as a word elsewhere. Equal passages are cut at the same places.

Words are compared in the Unicode form NFKC, without format characters: "ﬁn", "fin" with a soft
hyphen and full-width "ｆｉｎ" are "fin", and "é" is e and an accent. They are hashed as NFKD, which
is the same for texts whose NFKC is the same; marks of a letter are added, in whatever order.

Letters are those of Unicode 3.2, which every Python carries beside its own version and which never
changes; later code points count as letters outside the areas of symbols. Marks and decompositions
are those of Python's own version: once assigned, they never change.

Compiled code works on eight bytes at a time. It copies a document with ASCII letters in lower case
and a zero byte for each ASCII separator. Then a word of up to seven ASCII letters is one number,
whose end is found by arithmetic (Mycroft's test for a zero byte). Only words with other letters are
read character by character. A word's hash is computed from its ASCII letters, eight at a time, and
from each of its other code points.
"""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.characters import format_table
from nanoeuler.system.compiling import compiled

TABLE = 0x2FA20  # code points with an entry of their own: to the last that has a decomposition
TAGS = 0xE0000  # the first tags and private code points; from TABLE to here: Chinese characters
ALONE = np.uint64(1 << 31)  # marks a code point that is a word by itself
MARK = np.uint64(1 << 30)  # a combining mark
UNSPACED = np.uint64(1 << 29)  # a letter of a script without spaces
EXPANDED = np.uint64(1 << 28)  # several letters: the bits of CODE are their place in `expansions`
FORMAT = np.uint64(1 << 27)  # a character that counts for nothing
CODE = np.uint64((1 << 21) - 1)
UNSPACED_LETTERS = np.uint64(4)
WORDS_A_BYTE = 2  # at most: three bytes of a square of six kana
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
    (0x20000, TABLE),
)
UNSPACED_SCRIPTS = (
    (0x0E01, 0x0F00),  # Thai, Lao
    (0x1000, 0x10A0),  # Burmese
    (0x1780, 0x1800),  # Khmer
    (0x1950, 0x1A00),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AB0),  # Tai Tham
    (0x1B00, 0x1B80),  # Balinese
    (0xA980, 0xAA00),  # Javanese, Burmese
    (0xAA60, 0xAAE0),  # Burmese, Tai Viet
)
FOLDED = (
    (0x80, 0x3400),
    (0xA000, 0xD800),
    (0xF900, 0x12000),
    (0x1D000, 0x20000),
    (0x2F800, TABLE),
)
"""Code points with decompositions or capitals: no Chinese, old scripts or private areas."""
IOTA_BELOW = "\u0345"  # a mark, though its capital is a letter
SEED = np.uint64(0xCBF29CE484222325)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
LOW_BITS = np.uint64(0x0101010101010101)  # the lowest bit of each of eight bytes
HIGH_BITS = np.uint64(0x8080808080808080)  # the highest
COUNTS = np.uint64(0x0102030405060708)  # multiplied by 256**i, the top byte is i + 1
NO_ASCII = np.uint64(0xFF)  # the low byte of a hashed code point, which no ASCII letter has
ONE, SEVEN, EIGHT, HALF, TOP = (np.uint64(number) for number in (1, 7, 8, 32, 56))


@functools.cache
def letter_table() -> tuple[np.ndarray, np.ndarray]:
    """Return for each code point below `TABLE` 0 for a separator, else its lower case (uint32).

    Bits above `CODE` say what kind of letter it is. Of those that are `EXPANDED` the second array
    (uint32) has their number of letters, and then such an entry for each.
    """
    codes = [code for first, end in FOLDED for code in range(first, end)]
    simple = simple_letters()
    table = simple.copy()
    expansions: list[int] = []
    for code, folded in zip(codes, fold_letters(codes), strict=True):
        if len(folded) == 1:
            table[code] = simple[ord(folded)]
            continue
        letters = [int(simple[ord(letter)]) for letter in folded]
        letters = [letter for letter in letters if letter != FORMAT]
        if any(letters):
            table[code] = int(EXPANDED) | len(expansions)
            expansions += [len(letters), *letters]
        else:
            table[code] = 0
    return table, np.array(expansions, np.uint32)


def simple_letters() -> np.ndarray:
    """The entries of `letter_table`, each code point as it is."""
    old = unicodedata.ucd_3_2_0.category
    kinds = np.array([old(chr(code)) for code in range(0x20000)] + ["Lo"] * (TABLE - 0x20000))
    marks = np.zeros(TABLE, bool)
    marks[:0x20000] = [unicodedata.category(chr(code))[0] == "M" for code in range(0x20000)]
    unknown = (kinds == "Cn") & ~within(SYMBOLS)
    unknown[:0x80] = False
    letters = np.char.startswith(kinds, "L") | unknown
    table = np.arange(TABLE, dtype=np.uint32)
    table[within(IDEOGRAPHS) & ~marks] |= np.uint32(ALONE)
    table[within(UNSPACED_SCRIPTS) & letters & ~marks] |= np.uint32(UNSPACED)
    table[marks] |= np.uint32(MARK)
    table[~(letters | np.char.startswith(kinds, "N") | marks)] = 0
    table[format_table()[:TABLE]] = FORMAT
    return table


def fold_letters(codes: Sequence[int]) -> list[str]:
    """Return the letters of each character's NFKD, in lower case."""
    text = unicodedata.normalize("NFKD", "\0".join(map(chr, codes)))
    parts = [part.casefold() for part in text.split(IOTA_BELOW)]
    return unicodedata.normalize("NFKD", IOTA_BELOW.join(parts)).split("\0")


def within(areas: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return whether each code point below `TABLE` is in one of the areas (bool)."""
    inside = np.zeros(TABLE, bool)
    for first, end in areas:
        inside[first:end] = True
    return inside


def hash_words(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Hash all words of the documents.

    Returns the hashes (uint64) and the borders of the documents among them (int64, one more than
    documents).
    """
    # what is not written to takes no memory
    hashes = np.empty(WORDS_A_BYTE * int(batch.sizes.sum()) + len(batch) + 1, np.uint64)
    borders = np.empty(len(batch) + 1, np.int64)
    folded = np.empty(int(batch.sizes.max(initial=0)) + 8, np.uint8)
    # the eight bytes that begin at each byte, as one number
    eight = np.lib.stride_tricks.as_strided(
        folded[:8].view("<u8"), (len(folded) - 7,), (1,), writeable=False
    )
    count = fill_words(
        batch.text, batch.starts, batch.stops, *letter_table(), folded, eight, hashes, borders
    )
    return hashes[:count], borders


@compiled()
def finalise(value):
    """Apply MurmurHash3's 64-bit finaliser: each bit of the result depends on all of `value`."""
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
    """Copy `text`: ASCII letters in lower case, digits and other characters, else zero bytes."""
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
def fill_words(text, starts, stops, table, expansions, folded, eight, hashes, borders):
    """Hash the words of all documents and return their number.

    The loop has no branch that is hard to predict in English text: the hash of each eight bytes is
    written, and counted only if a word ends in them.
    """
    count = np.uint64(0)
    for document in range(len(starts)):
        borders[document] = count
        size = np.uint64(stops[document] - starts[document])
        fold(text[starts[document] : stops[document]], folded)
        first, at, word = np.uint64(0), np.uint64(0), SEED
        while at <= size:
            letters = eight[at]
            # the lowest bit set is that of the first zero byte
            zeros = (letters - LOW_BITS) & ~letters & HIGH_BITS
            end = (zeros & (np.uint64(0) - zeros)) >> SEVEN  # 256**length; 0 where there is none
            letters &= end - ONE
            if letters & HIGH_BITS != 0:
                at, count = spell(folded, first, table, expansions, hashes, count)
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
def spell(folded, at, table, expansions, hashes, count):
    """Hash the words from `at` to the next zero byte, character by character.

    Returns the offset after that byte, and the number of words so far.
    """
    word, letters, shift = SEED, np.uint64(0), np.uint64(0)
    inside = False  # a word
    whole = False  # its letter is a word by itself, and only marks may follow
    before = np.uint64(0)  # the letter before, in a script without spaces
    while folded[at] != 0:
        entry, at = letter_at(folded, at, table)
        parts, place = np.uint64(1), np.uint64(0)
        if entry & EXPANDED:
            place = np.uint64(entry & CODE)
            parts = np.uint64(expansions[place])
        for _ in range(parts):
            letter = entry
            if entry & EXPANDED:
                place += ONE
                letter = np.uint64(expansions[place])
            code = letter & CODE
            if letter & MARK:
                if inside:
                    if shift != 0:
                        word, letters, shift = mix(word, letters), np.uint64(0), np.uint64(0)
                    word += finalise(code)
                continue
            if letter & FORMAT:
                continue
            ends = whole or letter == 0 or letter & ALONE != 0
            if letter & UNSPACED:
                pair = finalise(before << HALF | code)
                ends |= before != 0 and pair % UNSPACED_LETTERS == 0
                before = code
            else:
                before = np.uint64(0)
            if ends:
                hashes[count] = mix(word, letters)
                count += np.uint64(inside)
                word, letters, shift, inside = SEED, np.uint64(0), np.uint64(0), False
            whole = letter & ALONE != 0
            if letter == 0:
                continue
            inside = True
            if code < 0x80:
                letters |= code << shift
                shift += EIGHT
                if shift == 64:
                    word, letters, shift = mix(word, letters), np.uint64(0), np.uint64(0)
            else:
                word = mix(mix(word, letters), code << EIGHT | NO_ASCII)
                letters, shift = np.uint64(0), np.uint64(0)
    hashes[count] = mix(word, letters)
    return at + ONE, count + np.uint64(inside)


@compiled()
def letter_at(folded, at, table):
    """Return the entry of `letter_table` for the character at `at`, and the offset of the next."""
    byte = np.uint32(folded[at])
    at += ONE
    if byte < 0x80:
        return np.uint64(byte), at
    following = np.uint32(1 if byte < 0xE0 else 2 if byte < 0xF0 else 3)  # bytes of six bits each
    code = byte & (np.uint32(0x3F) >> following)
    while following > 0 and folded[at] >= 0x80:
        code = np.uint32((code << np.uint32(6)) | (np.uint32(folded[at]) & np.uint32(0x3F)))
        at += ONE
        following -= np.uint32(1)
    if code < TABLE:
        return np.uint64(table[code]), at
    return np.uint64(code | ALONE) if code < TAGS else np.uint64(FORMAT), at
