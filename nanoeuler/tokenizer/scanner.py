"""GPT-2's pretokenization, in compiled code: text is cut into words, and no token crosses the
border of a word. `word_end` finds one word after another, `mark_words` all words of a text.

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

(Radford et al. 2019, `encoder.py` of the released code.) A word keeps the one space before it; the
last character of a longer run of white space belongs to the word that follows. Classes are those of
Unicode 16 on every Python. A byte that is not UTF-8 is a character of none of the classes, so the
words always join to exactly the bytes that were given.
"""

from pathlib import Path

import numpy as np

from nanoeuler.system.compiling import compiled

LENT = {"_nrt": False}
"""Options of `compiled` for functions that allocate nothing: their arrays belong to the caller.

Counting references to the arrays at every inner call took two thirds of a scan's time.
"""

OTHER, LETTER, NUMBER, SPACE = range(4)
LONGEST_CHARACTER = 4  # bytes
PADDING = 24  # bytes that may be read after the end of a text
LOW_BITS = np.uint64(0x0101010101010101)
HIGH_BITS = np.uint64(0x8080808080808080)
APOSTROPHES = np.uint64(0x2727272727272727)
LOWER_CASE = np.uint64(0x2020202020202020)
ABOVE_BEFORE_A = np.uint64(0x1F1F1F1F1F1F1F1F)  # added to a byte, sets its highest bit from a on
ABOVE_Z = np.uint64(0x0505050505050505)  # from the byte behind z on
FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Element i is the mask of the first i bytes of eight."""


def read_ranges() -> dict[str, list[range]]:
    """The code points of each class, by its heading in the file."""
    text = Path(__file__).with_name("unicode16.txt").read_text(encoding="ascii")
    ranges: dict[str, list[range]] = {}
    for section in text.split("\n\n")[1:]:  # behind the comment
        name, *items = section.split()
        bounds = ([int(end, 16) for end in item.split("-")] for item in items)
        ranges[name] = [range(ends[0], ends[-1] + 1) for ends in bounds]
    return ranges


def class_table() -> np.ndarray:
    """Return the class of every code point: uint8 (0x110000,)."""
    classes = np.full(0x110000, OTHER, np.uint8)
    ranges = read_ranges()
    for name, heading in ((LETTER, "LETTERS"), (NUMBER, "NUMBERS"), (SPACE, "WHITE_SPACE")):
        for codes in ranges[heading]:
            classes[codes.start : codes.stop] = name
    classes.flags.writeable = False
    return classes


CLASSES = class_table()


def padded(size: int) -> np.ndarray:
    """Allocate a text of `size` bytes followed by zeros: uint8 (size + PADDING,)."""
    data = np.empty(size + PADDING, np.uint8)
    data[size:] = 0
    return data


def eight_bytes_at(data: np.ndarray) -> np.ndarray:
    """View padded `data` as numbers of eight bytes: uint64 (size + PADDING - 7,).

    Element i is the eight bytes from byte i on, little-endian.
    """
    eight: np.ndarray = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    eight.flags.writeable = False
    return eight


@compiled(**LENT)
def is_continuation(byte):
    return byte & 0xC0 == 0x80


@compiled(**LENT)
def beyond_ascii(data, at, stop, classes):
    """Return class and length in bytes of the character at `at`, which is not ASCII.

    A byte that is not strict UTF-8 (RFC 3629) is a character of class other.
    """
    lead = np.int64(data[at])
    if 0xC2 <= lead <= 0xDF and at + 1 < stop and is_continuation(data[at + 1]):
        return classes[(lead & 0x1F) << 6 | data[at + 1] & 0x3F], 2
    if (
        0xE0 <= lead <= 0xEF
        and at + 2 < stop
        and is_continuation(data[at + 1])
        and is_continuation(data[at + 2])
    ):
        code = (lead & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | data[at + 2] & 0x3F
        if code >= 0x800 and not 0xD800 <= code <= 0xDFFF:
            return classes[code], 3
    if (
        0xF0 <= lead <= 0xF4
        and at + 3 < stop
        and is_continuation(data[at + 1])
        and is_continuation(data[at + 2])
        and is_continuation(data[at + 3])
    ):
        code = (
            (lead & 0x07) << 18
            | (np.int64(data[at + 1]) & 0x3F) << 12
            | (np.int64(data[at + 2]) & 0x3F) << 6
            | data[at + 3] & 0x3F
        )
        if 0x10000 <= code <= 0x10FFFF:
            return classes[code], 4
    return np.uint8(OTHER), 1


@compiled(**LENT)
def character(data, at, stop, classes):
    """Return class and length in bytes of the character at `at`."""
    if data[at] < 0x80:
        return classes[data[at]], 1
    return beyond_ascii(data, at, stop, classes)


@compiled(**LENT)
def end_of_run(data, at, stop, classes, wanted):
    """Return where the run of characters of class `wanted` ends that reaches `at`."""
    while at < stop:
        found, length = character(data, at, stop, classes)
        if found != wanted:
            break
        at += length
    return at


@compiled(**LENT)
def end_of_contraction(data, at, stop):
    """Return where 's 't 're 've 'm 'll or 'd with its apostrophe at `at` ends; `at` if none is."""
    first = data[at + 1] if at + 1 < stop else 0
    second = data[at + 2] if at + 2 < stop else 0
    if first == ord("s") or first == ord("t") or first == ord("m") or first == ord("d"):
        return at + 2
    if ((first == ord("r") or first == ord("v")) and second == ord("e")) or (
        first == ord("l") and second == ord("l")
    ):
        return at + 3
    return at


@compiled(**LENT)
def leading_letters(bytes_8):
    """Return how many of the first of eight bytes are ASCII letters, without a branch for each."""
    lower = (bytes_8 | LOWER_CASE) & ~HIGH_BITS
    letters = (lower + ABOVE_BEFORE_A) & ~(lower + ABOVE_Z) & ~bytes_8 & HIGH_BITS
    others = letters ^ HIGH_BITS
    return 8 if others == 0 else first_marked(others)


@compiled(**LENT)
def first_marked(bytes_8):
    """Return which is the first of eight bytes whose highest bit is set; no other bits may be."""
    below = (bytes_8 & -bytes_8) - np.uint64(1)
    return np.int64((below & LOW_BITS) * LOW_BITS >> np.uint64(56)) - 1


@compiled(**LENT)
def word_end(data, eight, at, stop, classes):
    """Return where the word at `at` ends, in the text that ends at `stop`.

    It is the first alternative of the pattern that matches. Most words are ASCII letters.
    """
    end = at + 1 if data[at] == ord(" ") else at
    letters = leading_letters(eight[end])
    if letters:
        end += letters
        while letters == 8:
            letters = leading_letters(eight[end])
            end += letters
        if end >= stop:
            return stop
        return end if data[end] < 0x80 else end_of_run(data, end, stop, classes, LETTER)
    if data[at] == ord("'"):
        end = end_of_contraction(data, at, stop)
        if end > at:
            return end
    body = at + 1 if data[at] == ord(" ") and at + 1 < stop else at
    kind, length = character(data, body, stop, classes)
    if kind != SPACE:
        return end_of_run(data, body + length, stop, classes, kind)
    end = last = at + length if body == at else body
    while end < stop:
        kind, length = character(data, end, stop, classes)
        if kind != SPACE:
            return last  # the run's last character belongs to the word after it
        last = end
        end += length
    return end


@compiled(**LENT)
def find_cut(data, is_end, classes):
    """Search `data`, a window of a text, for an offset where a word is sure to end.

    Returns whether there is one and the first of them, else where to continue. A word is sure to
    end between two characters of different classes of which the first is neither white space nor an
    apostrophe: no alternative of the pattern has both, and none looks back. `data` may begin within
    a character, and end within one unless it `is_end` of the text.
    """
    at, stop = 0, len(data)
    while at < stop and is_continuation(data[at]):
        at += 1
    last = stop if is_end else stop - LONGEST_CHARACTER
    if at >= last:
        return False, stop if is_end else at
    kind, length = character(data, at, stop, classes)
    while at + length < last:
        following, following_length = character(data, at + length, stop, classes)
        if following != kind and kind != SPACE and data[at] != ord("'"):
            return True, at + length
        at += length
        kind, length = following, following_length
    return False, stop if is_end else at


# ---- all words of a text at once


@compiled(**LENT)
def mark_words(data, eight, begin, stop, classes, kinds, starts):
    """Mark with 1 where a word of the text data[begin:stop] starts, and all else with 0.

    The words are those of `word_end`. `kinds` and `starts` are uint8 for each byte of `data`.
    Whether a word starts at a character depends on its class and on those beside it, but for
    contractions: so a processor looks at many bytes at a time.
    """
    if begin == stop:
        return
    classify_ascii(data[begin:stop], kinds[begin:stop])
    wide_spaces = classify_others(data, eight, begin, stop, classes, kinds)
    kinds[stop] = SPACE  # at the end, all white space of a run is one word
    starts[begin] = 1
    mark_borders(
        data[begin : stop - 1],
        kinds[begin : stop - 1],
        kinds[begin + 1 : stop],
        kinds[begin + 2 : stop + 1],
        starts[begin + 1 : stop],
    )
    if wide_spaces:
        mark_wide_spaces(data, eight, begin, stop, classes, kinds, starts)
    mark_contractions(data, eight, begin, stop, starts)


@compiled(**LENT)
def classify_ascii(data, kinds):
    for at in range(len(kinds)):
        byte = data[at]
        letter = np.uint8(np.uint8(byte | np.uint8(32)) - np.uint8(97)) < np.uint8(26)
        number = np.uint8(byte - np.uint8(48)) < np.uint8(10)
        space = (byte == np.uint8(32)) | (np.uint8(byte - np.uint8(9)) < np.uint8(5))
        of_word = np.uint8(np.uint8(letter) | np.uint8(np.uint8(number) * np.uint8(NUMBER)))
        kinds[at] = np.uint8(of_word | np.uint8(np.uint8(space) * np.uint8(SPACE)))


@compiled(**LENT)
def next_beyond_ascii(eight, at, stop):
    """The first byte from `at` on that is not ASCII, or `stop`."""
    while at < stop:
        marked = eight[at] & HIGH_BITS
        if marked != 0:
            return min(at + first_marked(marked), stop)
        at += 8
    return stop


@compiled(**LENT)
def classify_others(data, eight, begin, stop, classes, kinds):
    """Set the class of each byte of each character that is not ASCII.

    Returns whether any is white space.
    """
    wide_spaces, at = False, next_beyond_ascii(eight, begin, stop)
    while at < stop:
        kind, length = beyond_ascii(data, at, stop, classes)
        for byte in range(at, at + length):
            kinds[byte] = kind
        wide_spaces |= kind == SPACE
        at = next_beyond_ascii(eight, at + length, stop)
    return wide_spaces


@compiled(**LENT)
def mark_borders(before, kinds_before, kinds, kinds_after, starts):
    """Mark the first characters of words, from the second byte of a text on.

    `before` has the byte before each. A word starts where the class changes, but not behind the
    space that belongs to it; and at the last of several characters of white space.
    """
    for at in range(len(starts)):
        kind = kinds[at]
        changes = kind != kinds_before[at]
        is_space = kind == np.uint8(SPACE)
        of_space = is_space & (changes | (kinds_after[at] != np.uint8(SPACE)))
        of_other = (not is_space) & changes & (before[at] != np.uint8(32))
        starts[at] = np.uint8(of_space) | np.uint8(of_other)


@compiled(**LENT)
def mark_wide_spaces(data, eight, begin, stop, classes, kinds, starts):
    """Correct the marks of white space that has several bytes."""
    at = next_beyond_ascii(eight, begin, stop)
    while at < stop:
        kind, length = beyond_ascii(data, at, stop, classes)
        if kind == SPACE:
            alone = at == begin or kinds[at - 1] != SPACE
            starts[at] = alone or kinds[at + length] != SPACE
            for byte in range(at + 1, at + length):
                starts[byte] = 0
        at = next_beyond_ascii(eight, at + length, stop)


@compiled(**LENT)
def mark_contractions(data, eight, begin, stop, starts):
    """Correct the marks behind an apostrophe that starts a word: 's and the like are words."""
    at = begin
    while at < stop:
        others = eight[at] ^ APOSTROPHES
        marked = (others - LOW_BITS) & ~others & HIGH_BITS
        if marked == 0:
            at += 8
            continue
        at += first_marked(marked)
        if at >= stop:
            break
        end = end_of_contraction(data, at, stop) if starts[at] else at
        if end > at:
            for byte in range(at + 1, end):
                starts[byte] = 0
            if end < stop:
                starts[end] = 1
        at += 1
