"""GPT-2's pretokenization, in compiled code that reads each byte once: text is cut into words, and
no token crosses the border of a word.

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
    return np.lib.stride_tricks.as_strided(
        data[:8].view("<u8"), shape=(len(data) - 7,), strides=(1,), writeable=False
    )


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
def word_end(data, at, stop, classes):
    """Return where the word at `at` ends, in the text that ends at `stop`.

    It is the first alternative of the pattern that matches.
    """
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
