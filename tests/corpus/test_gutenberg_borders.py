"""Only Gutenberg's own header and licence are cut; what people put beside them stays."""

import time

import pytest

from nanoeuler.corpus.gutenberg import clean, strip_wrapping
from nanoeuler.corpus.sample.books import STYLES, Wrapping

MINE = "\n\n".join(
    f"Line {number} of my own: the rain came over the bay." for number in range(1500)
)
BOOK = "\n\n".join(f"The ferry came to the quay on day {day}." for day in range(300))
START = "*** START OF THE PROJECT GUTENBERG EBOOK THE QUAY ***"
END = "*** END OF THE PROJECT GUTENBERG EBOOK THE QUAY ***"
HEADER = f"""The Project Gutenberg eBook of The Quay

This eBook is for the use of anyone anywhere at no cost and with no restrictions whatsoever.

Title: The Quay

Author: Amos Tiller

{START}"""
FULL_LICENCE = """*** START: FULL LICENSE ***

THE FULL PROJECT GUTENBERG LICENSE

Section 1. You may copy it, give it away or re-use it.

This Web site includes information about Project Gutenberg, and how to
hear about new eBooks."""
LICENCE = f"{END}\n\nUpdated editions will replace the previous one.\n\n{FULL_LICENCE}"
TUTORIAL = f"""How to strip a header

Each file of Project Gutenberg begins with a header. It ends with this line:

{START}

Then comes the book, and behind it stands this line:

{END}

What comes after it is the licence. Copyright and trademark are explained there.

Small print is older. It looks like this:

*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*

And the last line of such a file is:

End of the Project Gutenberg Etext of The Quay

""" + "\n\n".join(f"Step {step}: search for the line, and cut there." for step in range(150))


def stripped(text: str) -> list[str]:
    return [part.strip() for part in strip_wrapping(text)]


def wrapped(style: str, text: str = BOOK) -> str:
    return Wrapping(style, "utf-8", "\n").wrap(text, "The Quay", "Amos Tiller", 90023).decode()


@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"unmarked"}))
@pytest.mark.parametrize("gap", ["\n", "\n\n", "\n\n\n\n"])
def test_text_of_one_s_own_in_front_of_a_book_stays(style, gap):
    assert stripped(MINE + gap + wrapped(style)) == [MINE, BOOK]


@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"unmarked", "endless"}))
def test_text_of_one_s_own_behind_a_book_stays(style):
    assert stripped(f"{wrapped(style)}\n\n{MINE}") == [BOOK, MINE]


def test_text_before_between_and_behind_books_stays_whole_and_apart():
    book = f"{HEADER}\n\n{BOOK}\n\n{LICENCE}"
    assert stripped(f"{MINE}\n{book}\n\nBetween.\n\n{book}\n\nBehind.\n") == [
        *(MINE, BOOK),
        *("Between.", BOOK),
        "Behind.",
    ]


def test_a_public_cleaning_keeps_them_too():
    text = clean(f"{MINE}\n\n{HEADER}\n\n{BOOK}\n\n{LICENCE}\n\n{MINE}\n".encode()).text
    assert text == f"{MINE}\n\n\n{BOOK}\n\n\n{MINE}\n"


def test_what_follows_the_licence_at_once_stays():
    assert stripped(f"{HEADER}\n\n{BOOK}\n\n{END}\n\n{MINE}") == [BOOK, MINE]


@pytest.mark.parametrize(
    "text",
    [
        TUTORIAL,
        f"{MINE}\n\n{START}\n\n{MINE}",
        f"{MINE}\n\n{END}\n\n{MINE}",
        f"{MINE}\n\nEnd of the Project Gutenberg Etext of The Quay\n\n{MINE}",
        f"{MINE}\n\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04*END*\n\n{MINE}",
        # an example, with all that belongs to it
        f"An example:\n\n{HEADER}\n\nThe text.\n\n{END}\n\n{MINE}",
        f"Code:\n\n```\n{HEADER}\n\n{BOOK}\n\n{LICENCE}\n```\n\n{MINE}",
        # quotations in running text
        f"> {START}\n\n{MINE}\n\n> {END}",
        f'The line "{START}" is searched for.\n\n{MINE}',
        f"Title: Of markers\n\n{MINE}\n\n{START}\n\n{MINE}",
    ],
)
def test_a_text_that_quotes_markers_stays_whole(text):
    assert strip_wrapping(text) == [text]
    assert MINE not in text or clean(text.encode()).text.count(MINE) == text.count(MINE)


def test_credits_are_looked_for_in_books_alone():
    mine = "Produced by me at www.example.org, as a web page in HTML.\n\n" + MINE
    assert stripped(f"{mine}\n\n{HEADER}\n\nProduced by Jane Doe\n\n{BOOK}\n\n{LICENCE}") == [
        mine,
        BOOK,
    ]
    assert mine.splitlines()[0] in clean(f"{mine}\n\n{HEADER}\n\n{BOOK}\n\n{LICENCE}".encode()).text


SMALL_PRINT = """The Project Gutenberg Etext of The Quay, by Amos Tiller

***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Why is this "Small Print!" statement here?
"""


@pytest.mark.parametrize("last", ["", "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04*END*"])
def test_a_short_etext_with_its_small_print_first_and_no_end_is_kept(last):
    book = clean(f"{SMALL_PRINT}{last}\n\n\nThe ferry came to the quay.\n".encode())
    assert book.kept
    assert book.text.endswith("The ferry came to the quay.\n")
    if last:
        assert book.text == "The ferry came to the quay.\n"


def test_a_licence_that_breaks_off_goes_and_no_more():
    broken = LICENCE[: LICENCE.index("This Web site")]
    assert stripped(f"{HEADER}\n\n{BOOK}\n\n{broken}") == [BOOK]
    assert stripped(f"{HEADER}\n\n{BOOK}\n\n{broken}\n\n{MINE}") == [BOOK, MINE]


def test_a_book_without_its_header_or_its_licence_loses_the_other():
    assert stripped(f"{BOOK}\n\n{LICENCE}") == [BOOK]
    assert stripped(f"{HEADER}\n\n{BOOK}\n") == [BOOK]
    assert stripped(f"{START}\n\n{BOOK}\n\n{END}\n") == [BOOK]


PIECES = {
    "end markers": END + "\n",
    "end markers apart": END + "\n\n",
    "start markers": START + "\n\n",
    "headers": HEADER + "\n",
    "headers and text": HEADER + "\n\nText.\n\n" + END + "\n\nMine.\n\n",
    "books": f"{HEADER}\n\nText.\n\n{LICENCE}\n\n",
    "last lines": "End of the Project Gutenberg Etext of X\n\n",
    "licences": FULL_LICENCE + "\n\n",
    "starts of licences": "*** START: FULL LICENSE ***\n",
    "starts of licences, apart": "*** START: FULL LICENSE ***\n_\n\nUpdated editions will\n\n",
    "small print": SMALL_PRINT + "*END*THE SMALL PRINT! X\n\n",
    "unclosed small print": SMALL_PRINT + "\n\n",
    "the name": "Project Gutenberg\n\n",
    "the name in a line": "Project Gutenberg ",
    "the name, spaced": "Project        Gutenberg's\n",
    "titles": "The Project Gutenberg Etext of a              \n",
    "fields": "Title:      \n",
    "note headings": "Transcriber's Note\n\n",
    "headings": "a\n\nChapter\n\n",
    "rulers": "-----",
    "fences": "```\n",
    "stars": "*",
    "carriage returns": "\r",
    "spaces": " ",
    "no-break spaces": "\xa0",
    "line feeds": "\n",
    "spaced lines": "  \n",
    "form feeds": "\f",
    "comments": "<!---->",
    "garbled": "Ã©",
}
AROUND = ("", f"{HEADER}\n\n{{}}\n\n{LICENCE}", "Transcriber's Note\n\n{}x", "Title:{}x\n" + START)


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES.keys())
def test_the_time_is_linear_in_what_is_repeated(piece):
    """A quadratic step would take half a minute for each of these 250 kB."""
    for around in AROUND:
        text = piece * (250_000 // len(piece))
        whole = around.replace("{}", text) or text
        began = time.process_time()
        strip_wrapping(whole)
        clean(whole.encode()) if not piece.startswith("<!") else None
        assert time.process_time() - began < 2.5
