"""GPT-2's pretokenization: text is cut into words, and no token ever crosses a word's border.

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

(Radford et al. 2019, `encoder.py` of the released code.) A word keeps the one space before it; of a longer run of white space the last
character is left to the word that follows. Classes are those of Unicode 16 on every Python.

Bytes that are not UTF-8 are words too: what decodes is text, and each byte that does not is one character of none of the classes
(a surrogate escape, PEP 383), which encodes to that byte again. So words always join to exactly the bytes that came in.
"""

import re
from collections.abc import Iterator
from functools import cache
from mmap import mmap

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import unicode16

NAME = "gpt2"
BLOCK = 1 << 20  # bytes that are cut into words at a time: enough to amortise a call, little enough to hold in memory
CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
BASIC_PLANE = 0xFFFF
LAST = 0x10FFFF

SAFE_CUT = re.compile(rb"[!-~](?=[ \n])")


def words(text: str) -> list[str]:
    """Cut `text` into its words, which join to `text`. Surrogates are characters of class other."""
    beyond_basic_plane = len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text)
    return pattern(LAST if beyond_basic_plane else BASIC_PLANE).findall(text)


def word_bytes(word: str) -> bytes:
    """The bytes that a word stands for."""
    return word.encode("utf-8", "surrogateescape")


def to_bytes(text: str | bytes) -> bytes:
    """The bytes of `text`. Raises `UserError` for a str with a lone surrogate, which no byte string stands for."""
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, a lone surrogate that UTF-8 cannot carry; remove it or give bytes"
        ) from None


def words_of_bytes(data: bytes) -> Iterator[list[str]]:
    """Cut `data` into words, a block at a time: memory stays bounded on text of any length."""
    for block in blocks(data):
        yield words(block.decode("utf-8", "surrogateescape"))


def blocks(data: bytes | mmap, start: int = 0, stop: int | None = None, size: int = BLOCK) -> Iterator[bytes]:
    """Cut `data[start:stop]` into blocks of about `size` bytes whose words together are the words of the whole."""
    stop = len(data) if stop is None else stop
    while start < stop:
        end = safe_cut(data, start + size, stop)
        yield data[start:end]
        start = end


def safe_cut(data: bytes | mmap, position: int, stop: int) -> int:
    """The first place from `position` on where a word surely ends, whatever surrounds it; `stop` when there is none.

    That is between a printing ASCII character and a space or newline: no alternative of the pattern has white space
    behind anything else, and none looks back.
    """
    found = SAFE_CUT.search(data, min(position, stop), stop)
    return found.end() if found else stop


@cache
def pattern(last: int) -> re.Pattern[str]:
    """The pattern for text whose code points are at most `last`: `re` tests those beyond the basic plane range by range."""
    letters, numbers, spaces = (character_set(table, last) for table in (unicode16.LETTERS, unicode16.NUMBERS, unicode16.WHITE_SPACE))
    return re.compile(f"{CONTRACTIONS}| ?[{letters}]+| ?[{numbers}]+| ?[^{spaces}{letters}{numbers}]+|[{spaces}]+(?![^{spaces}])|[{spaces}]+")


def character_set(table: str, last: int) -> str:
    """The inside of a regular expression's [] for a table of `unicode16`, cut off after `last`."""
    parts = []
    for item in table.split():
        low, _, high = item.partition("-")
        low_code, high_code = int(low, 16), min(int(high or low, 16), last)
        if low_code <= high_code:
            parts.append(f"\\U{low_code:08x}-\\U{high_code:08x}")
    return "".join(parts)
