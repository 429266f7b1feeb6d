"""The first words of sentences of prose in one's own text: prompts whose continuation can be read.

A heading, a table of contents, a list, a table or code begins no prose. Prose begins with a capital
letter, or with a letter of a script without capitals; it is mostly letters, few of them capitals;
its sentences end with a mark and have some words. Thai, for example, has no such mark.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from nanoeuler.corpus.characters import CLOSING, SENTENCE_ENDS

WORDS = 5  # of a prompt
LONGEST, SHORTEST = 60, 40
"""Characters of a prompt at most, as words need not be set apart by spaces, and of a paragraph at
least; a third of both in scripts of which a character says as much as half a word."""
MOST, TRIED = 100, 400  # openings of a document, and paragraphs that are looked at
LONGEST_PARAGRAPH = 2_000  # characters of it that are looked at
LINE = re.compile(r"\S[^\n]*")
END = re.compile(rf"[.!?…{SENTENCE_ENDS}][{CLOSING}]{{0,9}}(?=\s|$)|[{SENTENCE_ENDS}]")
ENDS_LINE = re.compile(rf"[.!?…:;{SENTENCE_ENDS}][{CLOSING}]{{0,9}}\s*\Z")
BEFORE = "\"'([{“”‘’«»‹›„‚「『《〈（【¿¡—–- \u3000"
"""Characters allowed before the first letter."""
DENSE = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Chinese, Japanese and Korean characters."""
LIST = re.compile(r"(?:[*+\-•·–#>|]+|(?:\d{1,4}|[IVXLCivxlc]{1,7}|[A-Za-z])[.):]|\[\w+\])\s")
LEADERS = re.compile(r"\.\s?\.\s?\.\s?\.|[\t|]|\s\d{1,4}\s*\Z")
"""Dots that lead to a page's number, tabulators, or that number alone: a table."""


def openings_of(document: str) -> tuple[list[str], list[str]]:
    """The first words of paragraphs of prose, and of other paragraphs that are long enough.

    At most `MOST` of each, spread over the document. The time is proportional to its length.
    """
    paragraphs = list(paragraphs_of(document))
    prose: list[str] = []
    others: list[str] = []
    for paragraph in spread(paragraphs, TRIED):
        part = 3 if DENSE.match(paragraph.lstrip(BEFORE)) else 1
        if len(paragraph) >= SHORTEST // part:
            first = " ".join(paragraph.split(maxsplit=WORDS)[:WORDS])[: LONGEST // part].strip()
            (prose if is_prose(paragraph) else others).append(first)
    return spread(prose, MOST), spread(others, MOST)


def spread(items: Sequence[str], most: int) -> list[str]:
    """Every n-th item, so that there are at most `most`."""
    return list(items[:: 1 + (len(items) - 1) // most]) if items else []


def paragraphs_of(document: str) -> Iterator[str]:
    """The beginnings of the paragraphs: between blank lines, or lines that are one each."""
    block: list[str] = []
    end = 0
    for found in LINE.finditer(document):
        if block and document.count("\n", end, found.start()) > 1:
            yield from joined(block)
            block = []
        block.append(found.group())
        end = found.end()
    yield from joined(block)


def joined(lines: Sequence[str]) -> Iterator[str]:
    """The paragraphs in lines that no blank one parts."""
    ended = sum(ENDS_LINE.search(line[-20:]) is not None for line in lines)
    if 2 * ended > len(lines):
        yield from (line[:LONGEST_PARAGRAPH] for line in lines)
    elif lines:
        yield "\n".join(lines[:50])[:LONGEST_PARAGRAPH]


def is_prose(paragraph: str) -> bool:
    """Whether a reader would take the beginning for that of a sentence."""
    lines = paragraph.split("\n")
    start = paragraph.lstrip(BEFORE)
    if not start or not is_capital(start[0]):
        return False
    if LIST.match(paragraph) or sum(LEADERS.search(line) is not None for line in lines) > 1:
        return False
    first = re.split(r"\W", start, maxsplit=1)[0]
    if len(first) > 1 and first.isupper() and is_cased(first):
        return False  # CHAPTER, CONTENTS
    letters = [letter for letter in paragraph if unicodedata.category(letter)[0] in "LM"]
    capitals = sum(letter.isupper() for letter in letters)
    marks = sum(not letter.isspace() for letter in paragraph) - len(letters)
    if 4 * capitals > len(letters) or 4 * marks > len(letters):
        return False
    ends = len(END.findall(paragraph))
    if not ends:
        return not is_cased(start[0]) and not DENSE.match(start)
    words = len(letters) if DENSE.match(start) else len(paragraph.split())
    return words >= 4 * ends


def is_cased(text: str) -> bool:
    return text.lower() != text.upper()


def is_capital(letter: str) -> bool:
    """Whether it is a capital, or a letter of a script that has none."""
    return letter.isalpha() and (letter.isupper() or letter.istitle() or not is_cased(letter))
