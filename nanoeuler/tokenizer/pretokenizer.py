"""GPT-2's pretokenization: text is cut into words, and no token ever crosses a word's border.

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

(Radford et al. 2019, `encoder.py` of the released code.) A word keeps the one space before it; of a longer run of white space the last
character is left to the word that follows. Classes are those of Unicode 16 on every Python.

Bytes that are not UTF-8 are words too: what decodes is text, and each byte that does not is one character of none of the classes. So
words always join to exactly the bytes that came in. `scanner.word_end` finds the words; here is what surrounds it.
"""

from collections.abc import Iterator

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.file_bytes import FileBytes
from nanoeuler.tokenizer.scanner import CLASSES, find_cut

NAME = "gpt2"
WINDOW = 1 << 9  # bytes that are searched for a cut at a time


def to_bytes(text: str | bytes) -> bytes:
    """The bytes of `text`. Raises `UserError` for a str with a lone surrogate, which no byte string stands for."""
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, "
            "a lone surrogate that UTF-8 cannot carry; remove it or give bytes"
        ) from None


def blocks(data: bytes | FileBytes, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut `data[start:stop]` into blocks of about `size` bytes whose words together are the words of the whole: start and stop of each."""
    while start < stop:
        end = safe_cut(data, start + size, stop)
        yield start, end
        start = end


def safe_cut(data: bytes | FileBytes, position: int, stop: int) -> int:
    """The first place from `position` on where a word surely ends, whatever surrounds it (`scanner.find_cut`); `stop` when there is none."""
    while position < stop:
        window = np.frombuffer(data[position : min(position + WINDOW, stop)], np.uint8)
        found, at = find_cut(window, position + len(window) == stop, CLASSES)
        if found:
            return position + at
        position += at
    return stop
