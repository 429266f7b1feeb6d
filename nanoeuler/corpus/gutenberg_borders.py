"""Find where Project Gutenberg's headers and licences begin and end in a text.

A header is recognised by a marker line and by its own wording just before: "The Project Gutenberg
eBook of …", "This eBook is for the use of anyone anywhere", fields such as "Title:", or the small
print of old files. A licence is recognised by a marker line and by its wording behind, or by
nothing standing behind. Text around them is somebody's own, and so is a marker without wording: a
tutorial may quote one.

The time is linear in the length of the text: what is read around a marker ends at the markers
beside it.
"""

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

NEW_HEADER = 4_000  # characters: no header without small print is longer
OLD_HEADER = 24_000  # characters: no header with it is
LICENCE = 60_000  # characters: no licence is longer
STRAY = (
    200  # characters: a longer paragraph that is not of the header's wording is not the header's
)
FIRST = 6  # paragraphs within which a licence begins: credits may precede it
QUOTED = 2_000  # characters: what a text quotes between two markers as an example is shorter

START = re.compile(
    r"^[^\S\n]*+\*{3,}+\s*+START OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
    # up to the closing stars, across two line ends at most, or else the line
    r"(?:[^*\n]*+(?:\n[^*\n]*+){0,2}?\*{3}|[^\n]*+)",
    re.MULTILINE | re.IGNORECASE,
)
SMALL_PRINT_START = re.compile(
    r"^[^\S\n]*+\*{3,}+\s*+START\s*+\*++\s*+THE SMALL PRINT!", re.MULTILINE | re.IGNORECASE
)
SMALL_PRINT_END = re.compile(
    r"^[^\S\n]*+\*++\s*+END\s*+\*?\s*+THE SMALL PRINT![^\n]*+", re.MULTILINE | re.IGNORECASE
)
END = re.compile(
    r"^[^\S\n]*+\*{3,}+\s*+END OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
    r"(?:[^*\n]*+(?:\n[^*\n]++)?\*{3}|[^\n]*+)",
    re.MULTILINE | re.IGNORECASE,
)
END_LINE = re.compile(
    r"^(?![^\S\n]*+\*{3})(?:[^\w\n>]|_){0,20}+(?:this is the )?end of (?:the |this )?"
    r"project gutenberg(?:['’]s\b|[^\S\n]++(?:e-?book|e-?text|edition)\b)[^\n]{0,200}+"
    r"(?:\n(?![^\S\n]*+(?:$|\*))[^\n]{1,200}+$){0,4}+",
    re.MULTILINE | re.IGNORECASE,
)
LICENCE_START = re.compile(
    r"^[^\S\n]*+\*{3,}+\s*+START: FULL LICENSE[^\n]*+", re.MULTILINE | re.IGNORECASE
)
PARAGRAPH = re.compile(r"^[^\n]*?\S[^\n]*+(?:\n(?![^\S\n]*+$)[^\n]*+)*+", re.MULTILINE)
FENCE = re.compile(r"^ {0,3}```", re.MULTILINE)

TITLE = re.compile(r"^Title:[^\S\n]*+(?:Title:)?[^\S\n]*+(\S[^\n]*+)", re.MULTILINE)
OPENING = re.compile(
    r"""^(?:[^\w\n]|_){0,20}+(?:
        (?:this\ is\ )?(?:the\ )?project\ gutenberg(?:['’]?s)?\ (?:e-?book|e-?text|edition)s?\b |
        (?:the\ )?project\ gutenberg['’]s\ (?s:.){1,200}?,?\s++by\b |
        this\ e-?book\ is\ for\ the\ use\ of\ anyone |
        copyright\ laws\ are\ changing\ all\ over\ the\ world |
        this\ header\ should\ be\ the\ first\ thing\ seen |
        please\ take\ a\ look\ at\ the\ important\ information\ in\ this\ header |
        welcome\ to\ the\ world\ of\ free\ plain\ vanilla
    )""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
"""Lines with which a header begins."""
FIELD = re.compile(
    r"""^[^\w\n]{0,20}+(?:
        (?:title|subtitle|author|translator|illustrator|editor|contributor|commentator|annotator|
        release\ date|posting\ date|last\ updated|most\ recently\ updated|reposted|edition|
        original\ publication|language|character\ set\ encoding|credits|note):  |
        date\ last\ updated | this\ file\ (?:was\ first\ posted|last\ updated) |
        most\ recently\ updated
    )""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
CREDIT = re.compile(
    r"^[^\w\n]{0,20}+(?:produced|e-?text prepared|transcribed|prepared|scanned|html version)\b"
    r"[^.\n]{0,60}?\b(?:by|from)\b",
    re.IGNORECASE | re.MULTILINE,
)
FURTHER = re.compile(
    r"""please\ read\ the\ "legal\ small\ print | e-?(?:book|text)s\ readable\ by\ both |
        these\ e-?(?:book|text)s\ (?:were\ )?prepared\ by | this\ is\ a\ copyrighted\ project |
        anyone\ anywhere,?\s++at\ no\ cost | information\ on\ contacting\ project\ gutenberg""",
    re.VERBOSE | re.IGNORECASE,
)
"""Wording of further paragraphs of a header."""
NEXT_HEADER = re.compile(
    r"(?:\W|_){0,20}+(?:the )?project gutenberg(?:['’]?s)? e-?(?:book|text)(?: of\b|[,;:])",
    re.IGNORECASE,
)
LICENCE_OPENING = re.compile(
    r"""\W{0,20}+(?:
        this\ file\ should\ be\ named | this\ and\ all\ associated\ files |
        updated\ editions\ will\ replace | creating\ the\ works\ from |
        start:\ full\ license | the\ full\ project\ gutenberg\ licen[sc]e |
        a\ word\ from\ project\ gutenberg | start\W++the\ small\ print
    )""",
    re.VERBOSE | re.IGNORECASE,
)
LICENCE_CLOSING = re.compile(
    r"""^(?:\W|_){0,20}+(?:
        (?:this|most\ people\ start\ at\ our)\ web\ ?site\b[^\n]*+(?:\n[^\n]*?\S[^\n]*+)*+ |
        an\ alternative\ method\ of\ locating\ ebooks:[^\n]*+(?:\s*+https?://[^\n]++)? |
        end:\ full\ license[^\n]*+ |
        end\s*+\*?\s*+the\ small\ print![^\n]*+
    )""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
LICENCE_WORDS = re.compile(
    r"""gutenberg | \be-?(?:book|text)s?\b | electronic\ work | \blicen[sc]e | trademark |
        copyright | donat | refund | warrant | disclaim | liab | damages | foundation |
        public\ domain | small\ print | copy\ it,\ give\ it\ away | volunteers | web\ ?site |
        ^\W*(?:section\ \d | 1\.[a-f]\b) | ^[^\S\n]*https?://""",
    re.VERBOSE | re.IGNORECASE,
)
FINIS = re.compile(r"\s*+\*++\s*+FINIS\s*+\*++\s*+", re.IGNORECASE)


ENDS = (END, END_LINE)
WORDS = {
    **dict.fromkeys((START, END, END_LINE), "project gutenberg"),
    SMALL_PRINT_END: "the small print!",
    LICENCE_START: "full license",
}
"""What a line of each kind says. Few texts do, and words are found far faster than such lines."""


class Cut(NamedTuple):
    """A header or a licence: `text[start:end]`, and its marker line."""

    start: int
    end: int
    header: bool
    marker: str


class Mark(NamedTuple):
    start: int
    end: int
    kind: re.Pattern[str]
    line: str


def find_cuts(text: str) -> list[Cut]:
    """Return the headers and licences in `text`, in their order."""
    marks = find_marks(text)
    cuts: list[Cut] = []
    for number, (mark, following) in enumerate(zip(marks, followers(marks), strict=True)):
        done = cuts[-1].end if cuts else 0
        if mark.start < done:
            continue
        after_header = bool(cuts) and cuts[-1].header
        if mark.kind in (START, SMALL_PRINT_END):
            before = max(done, marks[number - 1].end if number else 0)
            begin = header_begin(text, before, mark)
            if begin is None and (before > done or text[before : mark.start].strip()):
                continue
            begin = before if begin is None else begin
            front = text[before:begin].strip()
            if front and is_title(front, text[begin : mark.start]):
                front, begin = "", before
            if front and not after_header and not has_book(text, mark, following):
                continue
            cuts.append(Cut(begin, mark.end, True, mark.line))
        else:
            end = licence_end(text, mark, following, after_header)
            if end is not None:
                cuts.append(Cut(mark.start, end, False, mark.line))
    return cuts


def find_marks(text: str) -> list[Mark]:
    """Return all marker lines, in their order, but for those in the code of a Markdown file.

    Two that end a book, with nothing between them, are one.
    """
    lowered = text.lower()
    matches = [
        (match, kind)
        for kind, words in WORDS.items()
        if words in lowered
        for match in kind.finditer(text)
    ]
    fences = [match.start() for match in FENCE.finditer(text)] if matches else []
    found = [
        (*match.span(), kind) for match, kind in matches if bisect(fences, match.start()) % 2 == 0
    ]
    marks: list[Mark] = []
    for start, end, kind in sorted(found, key=lambda span: span[:2]):
        line = " ".join(text[start:end].split())
        follows_end = marks and marks[-1].kind in ENDS and not text[marks[-1].end : start].strip()
        if follows_end and kind in ENDS:
            start = marks.pop().start
        marks.append(Mark(start, end, kind, line))
    return marks


def followers(marks: Sequence[Mark]) -> list[Mark | None]:
    """For each mark the next one behind it that starts or ends a book.

    For a licence's it may be another licence's: what is read behind them all is read once.
    """
    found: list[Mark | None] = []
    following = licence = None
    for mark in reversed(marks):
        found.append(licence if mark.kind is LICENCE_START else following)
        if mark.kind in (START, *ENDS):
            following = licence = mark
        elif mark.kind is LICENCE_START:
            licence = mark
    return found[::-1]


def header_begin(text: str, before: int, mark: Mark) -> int | None:
    """Return where the header that ends with `mark` begins, or None where none is recognised."""
    found = list(PARAGRAPH.finditer(text, max(before, mark.start - OLD_HEADER), mark.start))
    if mark.kind is SMALL_PRINT_END:
        signs = (OPENING, SMALL_PRINT_START)
        lines = [line for each in found if (line := line_of(each, signs)) is not None]
        return min(lines, default=None)
    begin, opened, fields, strays = None, False, 0, 0
    for paragraph in reversed(found):
        words = paragraph.group()
        line = line_of(paragraph, (OPENING, FIELD, CREDIT, FURTHER))
        if line is not None:
            begin, strays = line, 0
            opened = opened or bool(OPENING.search(words))
            fields += len(FIELD.findall(words))
        elif len(words) > STRAY or strays == 2 or mark.start - paragraph.start() > NEW_HEADER:
            break
        else:
            strays += 1
    return begin if opened or fields >= 2 else None


def line_of(paragraph: re.Match[str], signs: Sequence[re.Pattern[str]]) -> int | None:
    """Return where the first line of `paragraph` begins that has one of `signs`."""
    text, (start, end) = paragraph.string, paragraph.span()
    found = [match.start() for sign in signs if (match := sign.search(text, start, end))]
    return max(text.rfind("\n", 0, min(found)) + 1, start) if found else None


def is_title(front: str, header: str) -> bool:
    """Whether `front` is the title that the header names."""
    titles = {" ".join(found.split()).casefold() for found in TITLE.findall(header)}
    return len(front) < STRAY and " ".join(front.split()).casefold() in titles


def has_book(text: str, mark: Mark, following: Mark | None) -> bool:
    """Whether a book follows the header that `mark` ends, and not an example of one."""
    if following is None or following.start - mark.end > QUOTED or following.kind is START:
        return True
    behind = first_paragraphs(text, following.end, len(text))
    return not behind or any(map(LICENCE_OPENING.match, behind))


def licence_end(text: str, mark: Mark, following: Mark | None, after_header: bool) -> int | None:
    """Return where the licence after `mark` ends; None if the mark ends no book.

    A mark that ends a book without a licence behind it is a licence by itself.
    """
    stop = following.start if following else len(text)
    behind = first_paragraphs(text, mark.end, stop)
    if not behind or (following is None and FINIS.fullmatch(text, mark.end)):
        return stop if following is None else mark.end
    stop = min(stop, mark.end + LICENCE)
    opened = mark.kind is LICENCE_START or any(map(LICENCE_OPENING.match, behind))
    if opened or (after_header and LICENCE_WORDS.search(behind[0])):
        closings = list(LICENCE_CLOSING.finditer(text, mark.end, stop))
        end = closings[-1].end() if closings else legal_end(text, mark.end, stop)
        finis = FINIS.match(text, end)
        end = finis.end() if finis else end
        if opened or closings or not text[end:stop].strip():
            return end if text[end:stop].strip() else stop
    return mark.end if after_header or OPENING.match(behind[0]) else None


def first_paragraphs(text: str, start: int, stop: int) -> list[str]:
    """Return the first paragraphs from `start` on, as far as they stand near it."""
    found = PARAGRAPH.finditer(text, start, min(stop, start + NEW_HEADER))
    return [match.group() for match in islice(found, FIRST)]


def legal_end(text: str, start: int, stop: int) -> int:
    """Return where the paragraphs end that speak of licences and the project."""
    end, strays = start, 0
    for paragraph in PARAGRAPH.finditer(text, start, stop):
        if NEXT_HEADER.match(paragraph.group()):
            break
        if LICENCE_WORDS.search(paragraph.group()):
            end, strays = paragraph.end(), 0
        elif len(paragraph.group()) > STRAY or strays == 2:
            break
        else:
            strays += 1
    return end
