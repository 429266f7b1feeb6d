"""Join the lines of a book's prose: where they end was a typesetter's choice, not the author's.

A paragraph is prose that was set to a width if at nearly every line end the next word would not
have fitted; or, where somebody typed it with a ragged margin, if its lines are nearly as wide and
go on in lower case. Verse, tables, lists, letters' addresses and headings break earlier, are
indented, or begin their lines with capitals.
"""

import re
from itertools import pairwise

from nanoeuler.corpus.gutenberg_borders import PARAGRAPH

NARROWEST = 55  # characters: narrower lines are verse throughout, or set in columns
SLACK = 4  # characters by which a line may be shorter than it could be
FULL = 0.9  # share of the line ends of a paragraph at which the next word would not have fitted
RAGGED = 0.65  # of the width, which each line of a ragged paragraph but the last one has
LOWER = 0.7  # share of its lines within a sentence that begin in lower case
SENTENCE_END = re.compile(r"[.!?][\"'”’)_]*\s*$")
INDENTED = re.compile(r"^[^\S\n]", re.MULTILINE)
TABLE = re.compile(r"\S[^\S\n]{3,}\S|\||\t|[._]{5,}")
ITEM = re.compile(r"^(?:[-*•]|\(?\d{1,3}[.)]|\(?[ivxlc]{1,5}[.)])[^\S\n]", re.MULTILINE)


def join_lines(text: str) -> str:
    """Return `text` with each paragraph of prose on one line."""
    width = find_width(text)
    if width < NARROWEST:
        return text
    return PARAGRAPH.sub(lambda match: join(match.group(), width), text)


def find_width(text: str) -> int:
    """The width to which most lines of paragraphs were set: 19 of 20 are no longer."""
    lengths = sorted(
        len(line)
        for paragraph in PARAGRAPH.finditer(text)
        for line in paragraph.group().split("\n")[:-1]
        if line[:1].strip()
    )
    return lengths[len(lengths) * 19 // 20] if lengths else 0


def join(paragraph: str, width: int) -> str:
    lines = paragraph.split("\n")
    if len(lines) < 2 or INDENTED.search(paragraph) or TABLE.search(paragraph):
        return paragraph
    if 2 * len(ITEM.findall(paragraph)) > len(lines):
        return paragraph
    breaks = [
        len(line.rstrip()) + 1 + len(following.split(None, 1)[0]) > width - SLACK
        for line, following in pairwise(lines)
    ]
    if sum(breaks) < FULL * len(breaks) and not is_ragged_prose(lines, width):
        return paragraph
    parts = [lines[0].rstrip()]
    for line in lines[1:]:
        # a dash or hyphen at the end of a line has no space behind it
        glued = re.search(r"\w-$|[^\s-]--$|\S—$", parts[-1]) is not None
        parts.append(("" if glued else " ") + line.rstrip())
    return "".join(parts)


def is_ragged_prose(lines: list[str], width: int) -> bool:
    if min(len(line.rstrip()) for line in lines[:-1]) < RAGGED * width:
        return False
    within = [
        following.lstrip("\"'“‘_(")[:1]
        for line, following in pairwise(lines)
        if not SENTENCE_END.search(line)
    ]
    return bool(within) and sum(map(str.islower, within)) >= LOWER * len(within)
