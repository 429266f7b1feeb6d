"""The form in which two texts are compared: Unicode's NFKC, without format characters.

The same text may have "é" as one code point or as two, a soft hyphen, a mark of direction, or a
ligature. What is trained on stays as it is.
"""

import functools
import re
import unicodedata

import numpy as np

FORMATS = (
    (0x00AD, 0x00AE),
    (0x034F, 0x0350),
    (0x0600, 0x0606),
    (0x061C, 0x061D),
    (0x06DD, 0x06DE),
    (0x070F, 0x0710),
    (0x0890, 0x0892),
    (0x08E2, 0x08E3),
    (0x180B, 0x180F),
    (0x200B, 0x2010),
    (0x202A, 0x202F),
    (0x2060, 0x2070),
    (0xFE00, 0xFE10),
    (0xFEFF, 0xFF00),
    (0xFFF9, 0xFFFC),
    (0x110BD, 0x110BE),
    (0x110CD, 0x110CE),
    (0x13430, 0x13440),
    (0x1BCA0, 0x1BCA4),
    (0x1D173, 0x1D17B),
    (0xE0000, 0xE1000),
)
"""The category Cf, and what selects a form of the character before it: first, end of each area."""
AREAS = "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in FORMATS)
FORMAT = re.compile(f"[{AREAS}]")


def comparable(text: bytes) -> bytes:
    """Return UTF-8 `text` in the form in which it is compared: itself if it has that form."""
    if text.isascii():
        return text
    letters = text.decode("utf-8", "replace")
    found = FORMAT.sub("", letters) if has_format(letters) else letters
    if not unicodedata.is_normalized("NFKC", found):
        found = unicodedata.normalize("NFKC", found)
    return text if found is letters else found.encode("utf-8", "replace")


def has_format(text: str) -> bool:
    """Whether a format character is in the text; ten times as fast as `FORMAT.search`."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return bool(format_table()[codes[codes >= 0x80]].any())


@functools.cache
def format_table() -> np.ndarray:
    table = np.zeros(0x110000, bool)
    for first, end in FORMATS:
        table[first:end] = True
    return table
