"""Decode the bytes of a text file to clean Unicode, whatever program wrote them.

Most files are UTF-8, with or without a byte-order mark; older ones are in one of the encodings that
encodings.py recognises. Some were damaged: UTF-8 read as Latin-1 and encoded again, doubled line
ends, stray NULs.
"""

import codecs
import re
from dataclasses import dataclass

from nanoeuler.corpus.encodings import SAMPLE, recognise, suitability

LEAST_MENDED = 3  # letters beyond ASCII in a text that is taken for doubly encoded
LEAST_SUITABLE = 0.6
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
    """Decode UTF-8, UTF-16 with a byte-order mark, or else what encodings.py recognises.

    Where it recognises nothing, the text is taken for Windows-1252. Known damage is mended.

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
    if is_broken_utf_8(text):
        return text, "utf-8", unreadable
    encoding = recognise(raw) or "cp1252"
    text = raw.decode(encoding, "replace")
    return text, encoding, text.count("\ufffd")


def is_broken_utf_8(text: str) -> bool:
    """Tell UTF-8 with a few broken bytes, each U+FFFD in `text`, from another encoding.

    No other one looks that much like UTF-8.
    """
    return sum(map(len, re.findall("[^\x00-\x7f\ufffd]+", text))) > text.count("\ufffd")


def undo_double_encoding(text: str) -> str | None:
    """Decode text whose UTF-8 bytes were read as Latin-1 or Windows-1252 and encoded again.

    Returns None if that is not what happened to it, which needs evidence: several letters, the
    whole of which makes sense in a language afterwards and none before.
    """
    text = text.removeprefix("\ufeff")
    first = NOT_ASCII.search(text)
    if first is None or not GARBLED.match(text, first.start()):
        return None
    try:
        mended = text.translate(TO_LATIN_1).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None
    mended = mended.replace("\ufeff", "")
    letters = NOT_ASCII.findall(mended)
    several = len(set(letters)) > 1 or min(letters, default="") > "\u07ff"  # of three bytes each
    if len(letters) < LEAST_MENDED or not several:
        return None
    sample = mended[max(0, first.start() - 1_000) :][:SAMPLE]
    return mended if suitability(sample) > LEAST_SUITABLE > suitability(text[:SAMPLE]) else None


def mend_control(match: re.Match[str]) -> str:
    """Replace a control character.

    Page breaks become line ends, and controls that stand for Windows-1252 letters those letters;
    all others are removed.
    """
    control = match.group()
    return "\n" if control in "\v\f" else WINDOWS.get(ord(control), "")
