"""Decode the bytes of a text file to clean Unicode, whatever program wrote them.

Most files are UTF-8, with or without a byte-order mark. Some were damaged: UTF-8 read as Latin-1
and encoded again, doubled line ends, stray NULs. Older ones are in another encoding, which is
recognised by what its letters make of a language: each that can decode the text is tried, and the
result is judged by the language that suits it best. Are its letters those of the language, the
common ones above all, and do they stand where letters of that language stand? Nothing is guessed:
where no language suits, or two encodings give different texts that suit alike, none is recognised.
"""

import codecs
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nanoeuler.shipped import tables_beside

SAMPLE = 60_000  # bytes that are judged
LEAST, MARGIN = 0.6, 0.05  # the score of a text in its language, and before the next encoding's
FEW = 6  # characters of East Asian text: fewer are no evidence
KNOWN = 0.4  # what the frequent words of a language add
MOST_FOREIGN = 0.6  # share of a word's letters beyond ASCII, in Latin script

ENCODINGS = (
    *("cp1252", "cp1250", "iso8859_2", "cp1254", "cp1257", "mac_roman", "cp850", "cp852"),
    *("cp1251", "koi8_r", "koi8_u", "iso8859_5", "cp866", "mac_cyrillic"),
    *("cp1253", "iso8859_7", "cp1255", "iso8859_8", "cp1256", "iso8859_6", "cp874"),
    *("gb18030", "big5", "cp932", "euc_jp", "cp949"),
)
"""In the order in which they are preferred where they give the same text."""
RARE, RARER = {"mac_roman", "cp850", "cp852", "cp866", "iso8859_6", "cp874"}, 0.2
"""Encodings that are met less often, and what their scores lose."""
ESCAPES = {b"\x1b$B": "iso2022_jp", b"\x1b$@": "iso2022_jp", b"\x1b$)C": "iso2022_kr"}
"""Encodings of seven bits, known by their escapes."""


def weights(letters: str, further: str = "") -> dict[str, float]:
    """Weigh the letters of a language, the most frequent one first, from 1.2 down to 0.3."""
    ranked = {letter: 1.2 - 0.9 * rank / len(letters) for rank, letter in enumerate(letters)}
    return dict.fromkeys(further, 0.3) | ranked


class Latin(dict[str, float]):
    """Any of the letters that a language of Latin script has beyond ASCII is as good.

    `words` are some of its frequent words in ASCII.
    """

    def __init__(self, letters: str, words: str):
        super().__init__(dict.fromkeys(letters, 1.0))
        self.words = frozenset(words.split())


TABLES = tables_beside(__file__)
LANGUAGES = (
    *(Latin(letters, words) for letters, words in TABLES["latin"]),
    *(weights(letters, rarer) for letters, rarer in TABLES["others"]),
)
HAN = frozenset(TABLES["han"])
QUOTES = frozenset("‘’‚“”„«»‹›–—…·")
USUAL = frozenset("£°©®™€§½¼")
SIGNS = frozenset("•°§©®™€£ ­´¨¿¡½¼¾²³×†‡№¶")
MARKS = QUOTES | SIGNS
EASTERN_MARKS = frozenset("。、，：；！？「」『』（）《》〈〉【】…—～・ー“”‘’　")
WORD = re.compile("[^\\s\x00-@\\[-`{-\x7f‘’‚“”„«»‹›–—…·]+")
CASE = re.compile("[a-zß-öø-ÿа-џα-ώ](?=[À-ÖØ-ÞЀ-ЯΑ-Ω])|[ß-öø-ÿа-џα-ώ](?=[A-Z])")
KANA = re.compile("[\u3041-\u3096]")
BESIDE = re.compile("(?<=[^\\W\\d_])[†‡•€£§¶№¨­´°¤¦¬±µ×÷](?!\\w*$)|[†‡•¶¨´°¤¦¬±µ×÷](?=[^\\W\\d_])")
"""Signs that do not stand beside a letter."""
TURNED = re.compile(
    r"(?<![^\s(])[’”…·¾½¼²³](?=\w)|[“‘„‚·](?=\s)"
    r"|(?<=[^\W\d_])[„‚“”…«»¾½¼²³](?=[^\W\d_])|(?<=[^\W\d_])[·€](?![^\W\d_])"
)


MIXED = re.compile("(?<=[a-z])[\u2e80-\uffff]|[\u2e80-\uffff](?=[a-z])")


def recognise(raw: bytes) -> str | None:
    """Return the name of the encoding of `raw`, which is not UTF-8, or None.

    The beginning of the text that is not ASCII is judged.
    """
    for escape, name in ESCAPES.items():
        if escape in raw:
            return name if decodes(raw, name) is not None else None
    first = re.search(rb"[\x80-\xff]", raw)
    if first is None:
        return None
    start = raw.rfind(b"\n", 0, max(0, first.start() - 200)) + 1
    start = max(start, raw.rfind(b"\n", 0, first.start()) + 1 - 2_000, 0)
    sample = raw[start : start + SAMPLE] if start else raw[:SAMPLE]
    texts: dict[str, str] = {}
    for name in ENCODINGS:
        text = decodes(sample, name)
        if text is not None and text not in texts.values():
            texts[name] = text
    scores = {
        name: suitability(text) - RARER * (name in RARE or has_kana_in_gb(name, text))
        for name, text in texts.items()
    }
    best, *others = sorted(scores, key=scores.__getitem__, reverse=True) or [""]
    if not best or scores[best] < LEAST:
        return None
    doubtful = any(
        scores[best] - scores[other] < MARGIN * difference(texts[best], texts[other])
        for other in others
    )
    return None if doubtful else best


def has_kana_in_gb(name: str, text: str) -> bool:
    """Whether Japanese was read as Chinese, whose encoding has kana in the same places."""
    return name == "gb18030" and bool(KANA.search(text))


def difference(one: str, other: str) -> float:
    """The share of the letters beyond ASCII that differ, of two readings of the same bytes."""
    if len(one) != len(other):
        return 1.0
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a > "\x7f" or b > "\x7f"]
    return sum(a != b for a, b in pairs) / max(1, len(pairs))


def decodes(raw: bytes, encoding: str) -> str | None:
    """Return `raw` decoded; its last character may be cut off. None if it is not so encoded."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(raw)
    except UnicodeError:
        return None


def suitability(text: str) -> float:
    """Say how well `text` suits one of the known languages: about 1, or 0 and less."""
    counts = Counter(letter for letter in text if letter > "\x7f")
    total = counts.total()
    if not total or any("\x80" <= letter < "\xa0" for letter in counts):
        return 0.0
    eastern = sum(count for letter, count in counts.items() if letter >= "\u2e80")
    if eastern > total / 2:
        if eastern < FEW:
            return 0.0
        return east_asian(counts) - len(MIXED.findall(text)) / total
    found = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    words = Counter({word: count for word, count in found.items() if word.isascii()})
    best = max(
        share_of(counts, language) + KNOWN * known_share(words, language) for language in LANGUAGES
    )
    return best - out_of_place(text) / total


def known_share(words: Counter[str], language: dict[str, float]) -> float:
    """How far the frequent words of a language are frequent in a text: at most 1."""
    if not isinstance(language, Latin) or not words:
        return 0.0
    known = sum(count for word, count in words.items() if word in language.words)
    return min(1.0, 5 * known / words.total())


def share_of(counts: Counter[str], language: dict[str, float]) -> float:
    score = 0.0
    for letter, count in counts.items():
        small = letter.lower()
        if small in language:
            score += language[small] * count * (1.0 if small == letter else 0.8)
        else:
            known = 1.0 if letter in QUOTES else 0.8 if letter in USUAL else 0.3
            score += count * (known if letter in MARKS else -1.5)
    return score / counts.total()


def out_of_place(text: str) -> float:
    """Count letters where none of a language stand."""
    wrong = 1.5 * len(CASE.findall(text)) + len(BESIDE.findall(text)) + len(TURNED.findall(text))
    for word, count in Counter(WORD.findall(text)).items():
        if word.isascii():
            continue
        foreign = sum(letter > "\x7f" for letter in word)
        others = sum(letter > "\u02ff" for letter in word)  # Greek, Cyrillic, Hebrew, …
        if 0 < others < len(word):
            wrong += 1.5 * foreign * count  # scripts are not mixed in a word
        elif not others and len(word) > 2 and foreign > MOST_FOREIGN * len(word):
            wrong += foreign * count
    return wrong


def east_asian(counts: Counter[str]) -> float:
    """Say how well a text suits Chinese, Japanese or Korean."""
    kana = share(counts, lambda letter: "\u3041" <= letter <= "\u30fe")
    hangul = share(counts, is_usual_hangul)
    marks = share(counts, EASTERN_MARKS.__contains__)
    han = share(counts, lambda letter: "\u4e00" <= letter <= "\u9fff")
    common = share(counts, HAN.__contains__)
    rest = 1 - kana - hangul - marks - han
    if kana > 0.2:
        return kana + marks + common + 0.5 * (han - common) - hangul - rest
    if hangul > 0.5:
        return hangul + marks - rest - han
    return marks + 1.4 * common - hangul - rest - kana


def is_usual_hangul(letter: str) -> bool:
    """Whether it is a syllable of KS X 1001: rarer ones are other scripts, misread."""
    return "\uac00" <= letter <= "\ud7a3" and len(letter.encode("euc_kr", "ignore")) == 2


def share(counts: Counter[str], belongs: Callable[[str], bool]) -> float:
    return sum(count for letter, count in counts.items() if belongs(letter)) / counts.total()


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
    """Decode UTF-8, UTF-16 with a byte-order mark, or else what `recognise` finds.

    Where it recognises nothing, the text is taken for Windows-1252. Known damage is mended.

    Never raises.
    """
    text, encoding, unreadable = read_bytes(raw)
    if (mended := undo_double_encoding(text)) is not None:
        text, encoding = mended, "utf-8 twice"
    if "\r" in text:
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
