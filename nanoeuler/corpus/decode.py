"""Decode the bytes of a text file to clean Unicode, whatever program wrote them.

Most files are UTF-8, with or without a byte-order mark; older ones are Windows-1252, which contains
the letters of Latin-1. Some were damaged: UTF-8 read as Latin-1 and encoded again, doubled line
ends, stray NULs.
"""

import codecs
import re
from dataclasses import dataclass

WINDOWS = {
    byte: letter
    for byte in range(0x80, 0xA0)
    if (letter := bytes([byte]).decode("cp1252", "replace")) != "\ufffd"
}
TO_LATIN_1 = {ord(letter): byte for byte, letter in WINDOWS.items()}
NOT_ASCII = re.compile("[^\x00-\x7f]")
# the UTF-8 bytes of a letter, read as letters
GARBLED = re.compile(f"[\xc2-\xf4][\x80-\xbf{re.escape(''.join(WINDOWS.values()))}]")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Decoded:
    """A text with "\\n" line ends and no control characters, and the encoding it was read with.

    `unreadable` counts the bytes that the encoding could not read: they are U+FFFD in the text.
    """

    text: str
    encoding: str
    unreadable: int


def decode(raw: bytes) -> Decoded:
    """Decode UTF-8, UTF-16 with a byte-order mark, or else Windows-1252, and mend known damage.

    Never raises.
    """
    text, encoding, unreadable = read_bytes(raw)
    if (mended := undo_double_encoding(text)) is not None:
        text, encoding = mended, "utf-8 twice"
    text = re.sub(r"(?<!\r)\r++\n", "\n", text).replace("\r", "\n")
    return Decoded(CONTROL.sub(mend_control, text), encoding, unreadable)


def read_bytes(raw: bytes) -> tuple[str, str, int]:
    """Return the text, its encoding, and the number of unreadable bytes."""
    if raw.startswith(UTF_16_MARKS):
        text = raw.decode("utf-16", "replace")
        return text, "utf-16", text.count("\ufffd")
    try:
        return raw.decode("utf-8"), "utf-8", 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
    unreadable = text.count("\ufffd")
    if sum(map(len, re.findall("[^\x00-\x7f\ufffd]+", text))) > unreadable:
        # Windows-1252 never looks that much like UTF-8: this is UTF-8 with a few broken bytes
        return text, "utf-8", unreadable
    text = raw.decode("cp1252", "replace")
    return text, "cp1252", text.count("\ufffd")


def undo_double_encoding(text: str) -> str | None:
    """Decode text whose UTF-8 bytes were read as Latin-1 or Windows-1252 and encoded again.

    Returns None if that is not what happened to it.
    """
    text = text.removeprefix("\ufeff")
    first = NOT_ASCII.search(text)
    if first is None or not GARBLED.match(text, first.start()):
        return None
    try:
        return text.translate(TO_LATIN_1).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None


def mend_control(match: re.Match[str]) -> str:
    """Replace a control character.

    Page breaks become line ends, and controls that stand for Windows-1252 letters those letters;
    all others are removed.
    """
    control = match.group()
    return "\n" if control in "\v\f" else WINDOWS.get(ord(control), "")
