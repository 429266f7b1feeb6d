"""What Unicode says of a text: the form in which two are compared, and where one may be cut.

Texts are UTF-8. They are compared as NFKC, without format characters: the same text may have "é" as
one code point or as two, a soft hyphen, a mark of direction, or a ligature. What is trained on
stays as it is.

A text is cut after a paragraph, a line, a sentence, a word, or any character. A sentence ends with
a mark of any script (the property Sentence_Terminal of Unicode 17,
https://www.unicode.org/Public/17.0.0/ucd/PropList.txt), and those of ASCII only before a space:
neither "3.14" nor "e.g.x" ends one. So text that has neither spaces nor line ends, as Chinese and
Thai may have none, is cut between sentences; where there are none either, between characters, but
never before a mark that belongs to the one before it.
"""

import functools
import re
import unicodedata

import numpy as np

FORMATS = (
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180e\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""The category Cf, and what selects a form of the character before it."""
FORMAT = re.compile(f"[{FORMATS}]")


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
    """Return for each code point whether it is a format character (bool)."""
    table = np.zeros(0x110000, bool)
    for first, last in re.findall("(.)(?:-(.))?", FORMATS):
        table[ord(first) : ord(last or first) + 1] = True
    return table


PARAGRAPHS, LINES, SENTENCES, WORDS = range(4)
SENTENCE_ENDS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b"
    "\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e"
    "\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d\u2047-\u2049"
    "\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876"
    "\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe52"
    "\ufe56\ufe57\uff01\uff0e\uff1f\uff61\U00010a56\U00010a57\U00010f55-\U00010f59"
    "\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1\U00011141-\U00011143"
    "\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    "\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7"
    "\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    "\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f"
    "\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
CLOSING = "\"'”’»›)\\]）］」』】》〉〕"
PARAGRAPH = re.compile(rb"\n(?:[ \t]*\r?\n)+")
LINE = re.compile(rb"\n")
SENTENCE = re.compile(
    rf"[.!?][{CLOSING}]{{0,9}}\s+|[{SENTENCE_ENDS}][{SENTENCE_ENDS}]{{0,9}}[{CLOSING}]{{0,9}}\s*"
)
WORD = re.compile(r"\s+")
JOINED = re.compile("[\u0e33\u0eb3\u1160-\u11ff\u200d\U0001f3fb-\U0001f3ff]")
"""Characters that continue another though they are no marks: vowels of Thai, Lao and Hangul, joined
emoji.
"""
LONGEST_CHARACTER = 64  # code points that are held together
NEAR = 100_000  # bytes: sentences and words are searched for no further back


def borders(text: bytes, kind: int) -> np.ndarray:
    """Return the places (int64) in `text` that are directly behind a border of one kind."""
    if kind in (PARAGRAPHS, LINES):
        pattern = PARAGRAPH if kind == PARAGRAPHS else LINE
        return np.array([found.end() for found in pattern.finditer(text)], np.int64)
    letters, places = characters(text)
    pattern_of_letters = SENTENCE if kind == SENTENCES else WORD
    return places[[found.end() for found in pattern_of_letters.finditer(letters)]]


def characters(text: bytes) -> tuple[str, np.ndarray]:
    """Return the characters of `text`, and the place of each and of the end.

    Bytes that are not UTF-8 are a character each.
    """
    try:
        letters = text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1"), np.arange(len(text) + 1)
    starts = np.flatnonzero(np.frombuffer(text, np.uint8) & 0xC0 != 0x80)
    return letters, np.append(starts, len(text))


def cut(text: bytes, first: int, last: int) -> int:
    """Return the best place in first < place <= last at which to cut `text`.

    It is the last border of the coarsest kind that is there; between characters if there is none,
    and `last` where even they can't be told.
    """
    _, last = whole_characters(text, first, last)
    for kind in (PARAGRAPHS, LINES, SENTENCES, WORDS):
        begin = first if kind in (PARAGRAPHS, LINES) else max(first, last - NEAR)
        begin, _ = whole_characters(text, begin, last)
        if len(found := borders(text[begin:last], kind)):
            return begin + int(found[-1])
    return last_character(text, first, last)


def whole_characters(text: bytes, first: int, last: int) -> tuple[int, int]:
    """Move `first` forward and `last` back to where UTF-8 characters begin."""
    place = last
    while last - place < 3 and first < place < len(text) and text[place] & 0xC0 == 0x80:
        place -= 1
    if place < len(text) and text[place] & 0xC0 == 0x80:
        place = last  # not UTF-8
    for _ in range(3):
        if first < place and text[first] & 0xC0 == 0x80:
            first += 1
    return first, place


def last_character(text: bytes, first: int, last: int) -> int:
    """Return the last place in first < place <= last that is between two characters."""
    before, last = whole_characters(text, max(first, last - 4 * LONGEST_CHARACTER), last)
    letters, places = characters(text[before:last])
    following = text[last : last + 4].decode("utf-8", "ignore")[:1]
    for number in range(len(letters), 0, -1):
        if not (continues(following) or letters[number - 1] == "\u200d"):
            return before + int(places[number])
        following = letters[number - 1]
    return last


def continues(letter: str) -> bool:
    """Whether a character (or "") continues the one before it."""
    return bool(letter) and (
        unicodedata.category(letter)[0] == "M" or JOINED.match(letter) is not None
    )
