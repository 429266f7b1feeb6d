"""GPT-2's pretokenization: text is cut into words, and no token crosses the border of a word.

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

(Radford et al. 2019, `encoder.py` of the released code.) A word keeps the one space before it; the
last character of a longer run of white space belongs to the word that follows. Classes are those of
Unicode 16 on every Python.

A byte that is not UTF-8 is a character of none of the classes. So the words always join to exactly
the bytes that were given. `scanner.word_end` finds the words; this module cuts long texts.
"""

from collections.abc import Iterator

import numpy as np

from nanoeuler.tokenizer.file_bytes import FileBytes
from nanoeuler.tokenizer.scanner import CLASSES, find_cut

WINDOW = 1 << 9  # bytes that are searched for a cut in one call


def blocks(data: bytes | FileBytes, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut `data[start:stop]` into blocks of about `size` bytes; yields start and stop of each.

    The words of all blocks together are the words of the whole.
    """
    while start < stop:
        end = safe_cut(data, start + size, stop)
        yield start, end
        start = end


def safe_cut(data: bytes | FileBytes, position: int, stop: int) -> int:
    """Return the first offset from `position` on where a word is sure to end; `stop` if none is.

    `scanner.find_cut` says when the end of a word does not depend on the text around it.
    """
    while position < stop:
        window = np.frombuffer(data[position : min(position + WINDOW, stop)], np.uint8)
        found, at = find_cut(window, position + len(window) == stop, CLASSES)
        if found:
            return position + at
        position += at
    return stop
