"""What volunteers wrote around a Gutenberg book, between the markers: credits, notes on the transcription, notices.

None of it says where it begins and ends, so paragraphs (runs of lines without a blank one) are judged by their words. The authors wrote
before there were e-texts, e-mail or HTML: a short paragraph that speaks of such things at the edge of a book is not theirs. When in doubt a
paragraph stays: a credit left in costs a line, a chapter taken out cannot be mended later.
"""

import itertools
import re
from dataclasses import dataclass

FRONT = 20_000  # characters from the start in which notes about the transcription are looked for
BACK = 20_000  # characters from the end, and never more than a tenth of the book
LONGEST = 2_500  # characters of the longest paragraph that is ever taken for a credit
SECTION_GAP = 3  # line ends between two sections: at least two blank lines
CHAPTER_GAP = 5  # line ends between two chapters, as Gutenberg sets them

PARAGRAPH = re.compile(r"^[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*", re.MULTILINE)
BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
RULER = re.compile(r"[-=_*+]{5,}\s*\Z")
ORNAMENT = re.compile(r"[\W_]+")
SIGNATURE = re.compile(r"\s*(?:\w{1,4}|\w.*\.)\s*", re.DOTALL)  # initials, or a last sentence
HEADING = re.compile(
    r"\s*(?:chapter|book|part|act|scene|canto|volume|letter|stave|introduction|preface|prologue|epilogue|contents)\b",
    re.IGNORECASE,
)
CREDIT = re.compile(
    r"""[\W_]*(?:
        (?:(?:re)?produced | prepared | transcribed | scanned | typed | digiti[sz]ed | proof(?:ed|read)?)\b [^.\n]{0,60}? \b(?:by|from)\b |
        (?:this|the)\ (?:file|document|electronic\ \w+|book)\ (?:was|is\ being|has\ been)\ (?:typed|scanned|produced|prepared|transcribed|created)\b |
        an(?:\ |onymous\ |\ anonymous\ )+(?:project\ gutenberg\ )?volunteers? |
        note\ from\ the\ original\ file |
        (?:title|author|release\ date|posting\ date|language|character\ set\ encoding):
    )""",
    re.VERBOSE | re.IGNORECASE,
)
MODERN = re.compile(
    r"""project\ gutenberg | gutenberg\ project | \bpg\ (?:editor|etext|ebook) | distributed\ proof | internet\ archive | world\ library,?\ inc |
        \be-?texts?\b | \bebooks?\b | \belectronic\ (?:book|text|version|edition) | \bhtml\b | \bocr\b | \bascii\b | \butf-8\b |
        https?:// | \bwww\. | [\w.]@[\w-]+\.\w | \be-?mail\b""",
    re.VERBOSE | re.IGNORECASE,
)
NOTICE = re.compile(
    r"project\s+gutenberg|gutenberg\s+project|world\s+library,?\s+inc\.", re.IGNORECASE
)
NOTE_HEADING = re.compile(
    r"""[\W_]*(?:
        (?:(?:original|pg|project\ gutenberg)\ )?(?:transcriber|redactor|preparer|scanner|updater)['’]?s?['’]?\ notes?\b |
        (?:pg|project\ gutenberg)\ editor['’]?s\ notes?\b | executive\ director['’]s\ notes?\b |
        notes\ on\ this\ e-?text\b | information\ about\ this\ e-?text\b | original\ comments\ on\ the\ preparation\ of\ the\ e-?text\b |
        typographical\ (?:notes\.|errors\ corrected)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
BARE_HEADING = re.compile(r"[^\n\[\]:.]+[:.]?\s*")  # with nothing of the note behind it
NOTE_WORDS = re.compile(
    r"italic|hyphen|spelling|punctuation|typographical|capital(?:s|i[sz])|transcri|footnotes?\ (?:have|are|is)\b|margin|blank\ line|page\ number|"
    r"original\ text|(?:is|are|were|was)\ (?:shown|indicated|represented|replaced)|typo\b|\berrors\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Paragraph:
    """Lines without a blank one between: `text[start:end]`, and how many line ends stand between it and the next paragraph."""

    start: int
    end: int
    words: str
    gap: int


def strip_credits(text: str) -> tuple[str, list[str]]:
    """Return the book without its volunteers' credits, notes and notices, and those as a list of what was taken out."""
    removed = []
    for find in (front_matter, back_matter, notices):
        found = find(text)
        removed += [paragraph.words.strip() for paragraph in found]
        for paragraph in reversed(found):
            text = text[: paragraph.start] + text[BLANK_LINES.match(text, paragraph.end).end() :]
    return trim(text), removed


def trim(text: str) -> str:
    """Without blank lines at the start and white space at the end; the first line keeps its indent, the last one its line end."""
    text = text[BLANK_LINES.match(text).end() :].rstrip()
    return text + "\n" if text else ""


def paragraphs(text: str, start: int, end: int) -> list[Paragraph]:
    spans = [match.span() for match in PARAGRAPH.finditer(text, start, end)]
    gaps = [
        text.count("\n", one[1], next_one[0]) for one, next_one in itertools.pairwise(spans)
    ] + [CHAPTER_GAP]
    return [
        Paragraph(*span, text[slice(*span)], gap) for span, gap in zip(spans, gaps, strict=False)
    ]


def is_credit(paragraph: Paragraph) -> bool:
    return len(paragraph.words) <= LONGEST and bool(
        CREDIT.match(paragraph.words) or MODERN.search(paragraph.words)
    )


def is_late_credit(paragraph: Paragraph) -> bool:
    """A credit behind the title: it must both begin like one and speak of modern things."""
    return len(paragraph.words) <= LONGEST and bool(
        CREDIT.match(paragraph.words) and MODERN.search(paragraph.words)
    )


def is_note_heading(paragraph: Paragraph) -> bool:
    return bool(
        NOTE_HEADING.match(paragraph.words) or NOTE_HEADING.match(paragraph.words.splitlines()[-1])
    )


def is_ornament(paragraph: Paragraph) -> bool:
    return bool(ORNAMENT.fullmatch(paragraph.words))


def front_matter(text: str) -> list[Paragraph]:
    """Credits with nothing of the book before them, then notes on the transcription that stand behind a title or a table of contents."""
    front = paragraphs(text, 0, text.rfind("\n\n", 0, FRONT) if len(text) > FRONT else len(text))
    found: list[Paragraph] = []
    index = 0
    while index < len(front):
        leading = len(found) == index
        following = index + 1
        if is_note_heading(front[index]):
            following = note_end(front, index, leading)
            found += front[index:following]
        elif (leading and (is_credit(front[index]) or is_ornament(front[index]))) or is_late_credit(
            front[index]
        ):
            found.append(front[index])
        index = following
    return found


def note_end(front: list[Paragraph], heading: int, leading: bool) -> int:
    """Index of the first paragraph behind the note that starts at `heading`.

    A note goes on while paragraphs speak of the transcription: a modern word within the next twelve (three, where some of the book already stands
    before the note), or a word about typography in the next one; never across the space between chapters. A last sentence or initials behind
    them belong to it when a wider space follows.
    """
    end = heading + 1
    alone = len(front[heading].words) < 80 and BARE_HEADING.fullmatch(front[heading].words)
    if (
        alone
        and end < len(front)
        and front[heading].gap < CHAPTER_GAP
        and not HEADING.match(front[end].words)
    ):
        end += 1
    reach = 12 if leading else 3
    candidate = end
    while (
        candidate < min(len(front), end + reach)
        and front[candidate - 1].gap < CHAPTER_GAP
        and len(front[candidate].words) <= LONGEST
    ):
        typographical = candidate == end and NOTE_WORDS.search(front[candidate].words)
        if (
            typographical
            or MODERN.search(front[candidate].words)
            or NOTE_HEADING.match(front[candidate].words)
        ):
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
    """Everything from a note on the transcription to the end, and credits with nothing of the book behind them."""
    back = paragraphs(text, max(len(text) - BACK, len(text) * 9 // 10), len(text))
    first = len(back)
    while first > 0 and (is_credit(back[first - 1]) or is_ornament(back[first - 1])):
        first -= 1
    for index in range(first):
        if NOTE_HEADING.match(back[index].words) and not any(
            HEADING.match(paragraph.words) for paragraph in back[index + 1 : first]
        ):
            first = index
            break
    while 0 < first < len(back) and is_ornament(back[first - 1]):
        first -= 1
    return back[first:]


def notices(text: str) -> list[Paragraph]:
    """Paragraphs anywhere that name the project itself: no author of these books did."""
    found: dict[int, Paragraph] = {}
    for match in NOTICE.finditer(text):
        around = paragraphs(text, max(match.start() - 2 * LONGEST, 0), match.end() + 2 * LONGEST)
        for paragraph in around:
            if paragraph.start <= match.start() < paragraph.end and len(paragraph.words) <= LONGEST:
                found.setdefault(paragraph.start, paragraph)
    return list(found.values())
