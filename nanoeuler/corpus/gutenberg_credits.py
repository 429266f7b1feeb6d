"""Remove what volunteers wrote around a Gutenberg book: credits, transcriber's notes, notices.

Nothing marks where these begin and end, so paragraphs (runs of lines without a blank one) are
judged by their words. The authors wrote before there were e-texts, e-mail or HTML: a short
paragraph about such things at the edge of a book is not theirs. In doubt a paragraph stays, because
a credit left in costs a line, while a removed chapter cannot be restored later.
"""

import re
from dataclasses import dataclass

from nanoeuler.corpus.gutenberg_borders import PARAGRAPH

FRONT = 20_000  # characters from the start that are searched for transcriber's notes
BACK = 20_000  # characters from the end that are searched, and at most a tenth of the book
LONGEST = 2_500  # characters: no longer paragraph is a credit
SECTION_GAP = 3  # line ends between two sections: at least two blank lines
CHAPTER_GAP = 5  # line ends between two chapters, as Gutenberg sets them

BLANK_LINES = re.compile(r"(?:[^\S\n]*+\n)*+")
RULER = re.compile(r"(?<![-=_*+])[-=_*+]{5,}+\s*+\Z")
ORNAMENT = re.compile(r"[\W_]+")
SIGNATURE = re.compile(r"\s*(?:\w{1,4}|\w.*\.)\s*", re.DOTALL)  # initials, or a last sentence
HEADING = re.compile(
    r"\s*(?:chapter|book|part|act|scene|canto|volume|letter|stave|"
    r"introduction|preface|prologue|epilogue|contents)\b",
    re.IGNORECASE,
)
CREDIT = re.compile(
    r"""[\W_]*(?:
        (?:
            (?:re)?produced | prepared | transcribed | scanned | typed |
            digiti[sz]ed | proof(?:ed|read)?
        )\b [^.\n]{0,60}? \b(?:by|from)\b |
        (?:this|the)\ (?:file|document|electronic\ \w+|book)\ (?:was|is\ being|has\ been)[ ]
            (?:typed|scanned|produced|prepared|transcribed|created)\b |
        an(?:\ |onymous\ |\ anonymous\ )+(?:project\ gutenberg\ )?volunteers? |
        note\ from\ the\ original\ file |
        (?:title|author|release\ date|posting\ date|language|character\ set\ encoding):
    )""",
    re.VERBOSE | re.IGNORECASE,
)
MODERN = re.compile(
    r"""project\ gutenberg | gutenberg\ project | \bpg\ (?:editor|etext|ebook) |
        distributed\ proof | internet\ archive | world\ library,?\ inc |
        \be-?texts?\b | \bebooks?\b | \belectronic\ (?:book|text|version|edition) |
        \bhtml\b | \bocr\b | \bascii\b | \butf-8\b |
        https?:// | \bwww\. | [\w.]@[\w-]+\.\w | \be-?mail\b""",
    re.VERBOSE | re.IGNORECASE,
)
NOTICE = re.compile(
    r"project\s+gutenberg|gutenberg\s+project|world\s+library,?\s+inc\.", re.IGNORECASE
)
NOTE_HEADING = re.compile(
    r"""[\W_]*(?:
        (?:(?:original|pg|project\ gutenberg)\ )?
            (?:transcriber|redactor|preparer|scanner|updater)['’]?s?['’]?\ notes?\b |
        (?:pg|project\ gutenberg)\ editor['’]?s\ notes?\b | executive\ director['’]s\ notes?\b |
        notes\ on\ this\ e-?text\b | information\ about\ this\ e-?text\b |
        original\ comments\ on\ the\ preparation\ of\ the\ e-?text\b |
        typographical\ (?:notes\.|errors\ corrected)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
BARE_HEADING = re.compile(r"[^\n\[\]:.]+[:.]?\s*")  # without any of the note's own text
NOTE_WORDS = re.compile(
    r"italic|hyphen|spelling|punctuation|typographical|capital(?:s|i[sz])|transcri|"
    r"footnotes?\ (?:have|are|is)\b|margin|blank\ line|page\ number|"
    r"original\ text|(?:is|are|were|was)\ (?:shown|indicated|represented|replaced)|"
    r"typo\b|\berrors\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Paragraph:
    """Lines without a blank one between them: `text[start:end]`."""

    start: int
    end: int
    words: str  # its text
    gap: int  # line ends between it and the next paragraph


def strip_credits(text: str, front: bool = True, back: bool = True) -> tuple[str, list[str]]:
    """Return the book without credits, notes and notices, and the removed paragraphs.

    They are looked for at its `front` and its `back`, and between where both are the book's.
    """
    removed = []
    asked = {front_matter: front, back_matter: back, notices: front and back}
    for find in (find for find, wanted in asked.items() if wanted):
        found = find(text)
        removed += [paragraph.words.strip() for paragraph in found]
        kept, done = [], 0
        for paragraph in found:
            kept.append(text[done : paragraph.start])
            done = after_blank_lines(text, paragraph.end)
        text = "".join([*kept, text[done:]])
    return trim(text), removed


def trim(text: str) -> str:
    """Remove blank lines at the start and white space at the end.

    The first line keeps its indent, the last one its line end.
    """
    text = text[after_blank_lines(text, 0) :].rstrip()
    return text + "\n" if text else ""


def after_blank_lines(text: str, start: int) -> int:
    """Return where the first line from `start` on that is not blank begins."""
    found = BLANK_LINES.match(text, start)
    return found.end() if found else start


def paragraphs(text: str, start: int, end: int) -> list[Paragraph]:
    spans = [match.span() for match in PARAGRAPH.finditer(text, start, end)]
    nexts = [first for first, _ in spans[1:]]
    gaps = [text.count("\n", last, first) for (_, last), first in zip(spans, nexts, strict=False)]
    return [
        Paragraph(first, last, text[first:last], gap)
        for (first, last), gap in zip(spans, [*gaps, CHAPTER_GAP], strict=False)
    ]


def is_credit(paragraph: Paragraph) -> bool:
    words = paragraph.words
    return len(words) <= LONGEST and bool(CREDIT.match(words) or MODERN.search(words))


def is_late_credit(paragraph: Paragraph) -> bool:
    """Tell a credit after the title, which must begin like one and speak of modern things."""
    words = paragraph.words
    return len(words) <= LONGEST and bool(CREDIT.match(words) and MODERN.search(words))


def is_note_heading(paragraph: Paragraph) -> bool:
    words = paragraph.words
    return bool(NOTE_HEADING.match(words) or NOTE_HEADING.match(words.splitlines()[-1]))


def is_ornament(paragraph: Paragraph) -> bool:
    return bool(ORNAMENT.fullmatch(paragraph.words))


def front_matter(text: str) -> list[Paragraph]:
    """Find credits before the book, and notes that follow a title or a table of contents."""
    front = paragraphs(text, 0, text.rfind("\n\n", 0, FRONT) if len(text) > FRONT else len(text))
    found: list[Paragraph] = []
    index = 0
    while index < len(front):
        paragraph = front[index]
        leading = len(found) == index
        following = index + 1
        if is_note_heading(paragraph):
            following = note_end(front, index, leading)
            found += front[index:following]
        elif is_late_credit(paragraph) or (
            leading and (is_credit(paragraph) or is_ornament(paragraph))
        ):
            found.append(paragraph)
        index = following
    return found


def note_end(front: list[Paragraph], heading: int, leading: bool) -> int:
    """Return the index of the first paragraph after the note that starts at `heading`.

    A note continues while paragraphs speak of the transcription: a modern word within the next
    twelve (three, if part of the book precedes the note), or a word about typography in the next
    one. It never continues across the gap between chapters. A last sentence or initials after it
    belong to it when a wider gap follows.
    """
    end = heading + 1
    alone = len(front[heading].words) < 80 and BARE_HEADING.fullmatch(front[heading].words)
    goes_on = end < len(front) and front[heading].gap < CHAPTER_GAP
    if alone and goes_on and not HEADING.match(front[end].words):
        end += 1
    reach = 12 if leading else 3
    candidate = end
    while candidate < min(len(front), end + reach) and front[candidate - 1].gap < CHAPTER_GAP:
        words = front[candidate].words
        if len(words) > LONGEST:
            break
        typographical = candidate == end and NOTE_WORDS.search(words)
        if typographical or MODERN.search(words) or NOTE_HEADING.match(words):
            end = candidate + 1
        candidate += 1
    if alone and not RULER.search(front[end - 1].words):
        for tail in range(end, min(end + 2, len(front))):
            if front[tail - 1].gap >= SECTION_GAP or not SIGNATURE.fullmatch(front[tail].words):
                break
            if front[tail].gap >= SECTION_GAP:
                return tail + 1
    return end


def back_matter(text: str) -> list[Paragraph]:
    """Find everything from a transcriber's note to the end, and credits after the book."""
    back = paragraphs(text, max(len(text) - BACK, len(text) * 9 // 10), len(text))
    first = len(back)
    while first > 0 and (is_credit(back[first - 1]) or is_ornament(back[first - 1])):
        first -= 1
    headings = [index for index in range(first) if HEADING.match(back[index].words)]
    for index in range(headings[-1] if headings else 0, first):
        if NOTE_HEADING.match(back[index].words):
            first = index
            break
    while 0 < first < len(back) and is_ornament(back[first - 1]):
        first -= 1
    return back[first:]


def notices(text: str) -> list[Paragraph]:
    """Find paragraphs anywhere that name Project Gutenberg: no author of these books did."""
    if not NOTICE.search(text):
        return []
    return [
        Paragraph(match.start(), match.end(), match.group(), 0)
        for match in PARAGRAPH.finditer(text)
        if match.end() - match.start() <= LONGEST and NOTICE.search(match.group())
    ]
