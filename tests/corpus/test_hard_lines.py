"""The lines of prose are joined; verse, tables, lists, letters and headings stay as they are."""

import textwrap
import time
from pathlib import Path

import pytest

from nanoeuler.corpus.document_sources import Books
from nanoeuler.corpus.gutenberg import find_width, join_lines

SENTENCES = (
    "In the morning the fog lay on the river, and the ferryman did not dare to leave the bank.",
    "He heard a train whistle far behind the forest -- it was late -- and thought of a letter.",
    "His daughter, a well-known singer, had promised to come on Saturday with her children.",
)
PROSE = [" ".join(SENTENCES[start:] * 2) for start in range(3)] * 4
STAYS = {
    "verse": "The ferry came, the ferry went,\nAnd no one knew for what it meant,\n"
    "But every evening on the quay\nA lantern burned for you and me.",
    "indented verse": "    The fog that on the river lay and would not lift and would not stay\n"
    "    has covered all the road to town and all the hills and all the down",
    "a letter": "  To the harbour master of the town of Orren, who has read what I have sent,\n"
    "  and to all others whom it may concern in that town and in the towns near by,",
    "a table": "fog        river      42 days in the year of which nine in the month of May\n"
    "rain       harbour    80 days in the year of which two in the month of May it is",
    "contents": "CHAPTER I. The Ferry\nCHAPTER II. The Fog\nCHAPTER III. The Letter",
    "a list": "1. The fog that lay on the river, and that nobody dared to enter, for years.\n"
    "2. The train that whistled far behind the forest, and that was late on Mondays.",
    "a heading": "THE FERRYMAN\nA Tale of the River",
    "a signature": "Yours faithfully,\nAmos Tiller",
    "an address": "14 Quay Street\nOrren Vale\nThe Isles",
    "one line": "The ferry came.",
}


RAGGED = (
    "On the third day the wind changed, and it was colder in the\nharbour than anybody could "
    "remember, so that even Amos Tiller\nlit the stove. He had said.... But he never in his\n"
    "sober days said anything twice."
)
"""Typed by hand: the words behind the first and the third line end would have fitted."""


def set_to(width: int, *paragraphs: str) -> str:
    return "\n\n".join(textwrap.fill(each, width) for each in paragraphs) + "\n"


@pytest.mark.parametrize("width", [60, 65, 72, 80])
def test_paragraphs_of_prose_become_one_line_each(width):
    assert join_lines(set_to(width, *PROSE)) == "\n\n".join(PROSE) + "\n"


@pytest.mark.parametrize("kind", STAYS)
@pytest.mark.parametrize("width", [65, 72])
def test_what_an_author_has_broken_stays(kind, width):
    text = set_to(width, *PROSE)
    joined = "\n\n".join(PROSE)
    assert join_lines(f"{text}\n\n{STAYS[kind]}\n\n\n{text}") == (
        f"{joined}\n\n\n{STAYS[kind]}\n\n\n{joined}\n"
    )


@pytest.mark.parametrize("width", [65, 72])
def test_prose_with_a_ragged_margin_is_joined_but_not_verse_of_its_width(width):
    verse = RAGGED.replace("\nh", "\nH").replace("\nl", "\nL").replace("\ns", "\nS")
    text = set_to(width, *PROSE)
    joined = "\n\n".join([*PROSE, RAGGED.replace("\n", " "), verse]) + "\n"
    assert join_lines(f"{text}\n{RAGGED}\n\n{verse}\n") == joined


def test_a_book_of_verse_stays_whole():
    text = "\n\n".join([STAYS["verse"], STAYS["indented verse"]] * 40)
    assert join_lines(text) == text


def test_dashes_and_hyphens_at_the_end_of_a_line_take_no_space():
    line = "word " * 13
    text = f"{line}of a well-\nknown {line[:60]}late--\nand {line}\n\n{set_to(72, *PROSE)}"
    assert join_lines(text).startswith(f"{line}of a well-known {line[:60]}late--and word")


def test_no_letter_is_lost():
    text = set_to(70, *PROSE, *STAYS.values())
    assert join_lines(text).split() == text.split()
    assert find_width("") == 0
    assert join_lines("") == ""


def test_books_are_read_joined_if_asked(tmp_path):
    path: Path = tmp_path / "pg1.txt"
    path.write_text(set_to(70, *PROSE))
    for join, expected in ((False, set_to(70, *PROSE)), (True, "\n\n".join(PROSE) + "\n")):
        (read,) = Books([path], join=join).batches()
        assert b"".join(read().runs()).decode() == expected


@pytest.mark.parametrize("piece", ["\n", " \n", "word ", "a\n", "-- \n", "word\n" * 9 + "\n", "|"])
def test_the_time_is_linear(piece):
    text = set_to(72, *PROSE) + piece * (2_000_000 // len(piece))
    began = time.process_time()
    join_lines(text)
    assert time.process_time() - began < 10
