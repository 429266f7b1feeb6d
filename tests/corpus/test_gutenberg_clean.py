"""A Gutenberg file is cut down to its book: none of the project's words stays, no text is lost."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler.corpus.gutenberg import clean, clean_file
from nanoeuler.errors import UserError

BOOK = """THE LANTERN OF ORREN VALE

by Ada Quill


CHAPTER I

The lamp was lit before the rain began, and nobody in
the village could say who had lit it.

CHAPTER II

In the morning it was out.

THE END"""
HEADER = """The Project Gutenberg EBook of The Lantern of Orren Vale, by Ada Quill

This eBook is for the use of anyone anywhere at no cost.

Title: The Lantern of Orren Vale
       A Tale

Author: Ada Quill

Language: English

"""
LICENCE = """

*** START: FULL LICENSE ***

THE FULL PROJECT GUTENBERG LICENSE
PLEASE READ THIS BEFORE YOU DISTRIBUTE OR USE THIS WORK
"""
SMALL_PRINT = """**Welcome To The World of Free Plain Vanilla Electronic Texts**

***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Why is this "Small Print!" statement here? You know: lawyers.
*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*
"""


def wrapped(start: str, end: str, before: str = "", after: str = "", book: str = BOOK) -> bytes:
    return f"{HEADER}{start}\n\n\n{before}\n\n\n\n{book}\n\n\n{after}\n\n{end}\n{LICENCE}".encode()


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK THE LANTERN ***",
            "*** END OF THIS PROJECT GUTENBERG EBOOK THE LANTERN ***",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***",
        ),
        (
            "***START OF THE PROJECT GUTENBERG EBOOK THE LANTERN***",
            "***END OF THE PROJECT GUTENBERG EBOOK THE LANTERN***",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK, THE LANTERN ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK, THE LANTERN ***",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG ETEXT THE LANTERN ***",
            "*** END OF THE PROJECT GUTENBERG ETEXT THE LANTERN ***",
        ),
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK THE LANTERN, BY\nADA QUILL ***",
            "*** END OF THIS PROJECT GUTENBERG EBOOK THE LANTERN, BY\nADA QUILL ***",
        ),
        (
            "***START OF THE PROJECT GUTENBERG EBOOK THE\nLANTERN***",
            "***END OF THE PROJECT GUTENBERG EBOOK THE\nLANTERN***",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK THE LANTERN",
            "    *** END OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***",
        ),
        (SMALL_PRINT, "End of the Project Gutenberg Etext of The Lantern of Orren Vale"),
        (SMALL_PRINT, "End of The Project Gutenberg Etext of The Lantern of Orren Vale"),
        (
            SMALL_PRINT.replace("*END*THE", "*END THE"),
            "End of this Project Gutenberg etext of The Lantern",
        ),
        (
            SMALL_PRINT,
            '"This is the end of the Project Gutenberg Edition of The Lantern\nof Orren Vale"',
        ),
        (SMALL_PRINT, ""),
    ],
)
def test_the_book_is_what_stands_between_the_markers(start, end):
    book = clean(wrapped(start, end))
    assert book.text == BOOK + "\n"
    assert book.kept
    assert book.start_marker.startswith("*")
    assert book.end_marker
    assert (book.title, book.author) == ("The Lantern of Orren Vale", "Ada Quill")


def test_without_an_end_marker_the_text_goes_to_the_end():
    book = clean(f"{HEADER}{SMALL_PRINT}\n{BOOK}\n\n".encode())
    assert book.text == BOOK + "\n"
    assert book.end_marker is None


def test_without_markers_the_text_is_kept_and_the_record_says_so():
    book = clean(BOOK.encode())
    assert (book.text, book.kept, book.start_marker, book.end_marker) == (
        BOOK + "\n",
        True,
        None,
        None,
    )


def test_small_print_behind_the_newer_marker_is_cut_as_well():
    start = "*** START OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***\n" + SMALL_PRINT
    assert (
        clean(wrapped(start, "*** END OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***")).text
        == BOOK + "\n"
    )


def test_small_print_behind_the_end_does_not_move_the_start():
    end = "*** END OF THE PROJECT GUTENBERG EBOOK THE LANTERN ***\n" + SMALL_PRINT
    assert (
        clean(wrapped("*** START OF THE PROJECT GUTENBERG EBOOK, THE LANTERN ***", end)).text
        == BOOK + "\n"
    )


@pytest.mark.parametrize(
    "credit",
    [
        "Produced by An Anonymous Volunteer and David Widger",
        "Produced by Jane Doe and the Online\nDistributed Proofreading Team at http://www.pgdp.net",
        "E-text prepared by Jane Doe, Toronto, Canada,\nand revised by John Roe, M.D.",
        "Transcribed from the 1897 Service edition by Jane Doe, email jane@example.org",
        "This etext was created by Jane Doe, of Omaha, Nebraska.",
        "This Project Gutenberg Etext was prepared by Jane Doe.",
        "Scanned and Edited by Jane Doe, jane@example.org",
        "This book was TYPED in by Jane Doe",
        "An Anonymous Volunteer, and Jane Doe",
        "Produced by Jane Doe. (This\nfile was produced from images generously made available\nby "
        "The Internet Archive.)",
        "E-text prepared by Jane Doe\n\n\n\nNote: Project Gutenberg also has an HTML version of "
        "this\n      file which includes the original illustrations.",
        "Produced by Jane Doe\n\n\n\nTranscriber's Note:\n\nItalics are shown _so_.\n\nFootnotes "
        "have been moved to the end.",
        "+---------------------+\n| Transcriber's Note: |\n|                     |\n| Errors "
        "corrected.   |\n+---------------------+",
        "[Transcriber's note: spelling as in the original.]",
        "PG Editor's Note:\n\nArchaic spelling has not been changed.\n\nDW",
        "[Editor's Note: Project Gutenberg ebook #43 is the same title and easier to read.]",
    ],
)
def test_credits_and_notes_at_the_top_go(credit):
    start, end = (
        "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
    )
    book = clean(wrapped(start, end, before=credit))
    assert book.text == BOOK + "\n"
    assert book.removed


def test_a_note_behind_the_title_goes_and_the_title_stays():
    title, rest = BOOK.split("\n\n\n", 1)
    noted = (
        f"{title}\n\n\nTRANSCRIBER'S NOTES ON THE E-TEXT:\n\n"
        "This E-text follows the first edition.\n\n"
        f"Its italics are capitals here.\n\n\n\n{rest}"
    )
    book = clean(noted.encode())
    assert book.text == f"{title}\n\n\n{rest}\n"


@pytest.mark.parametrize(
    "trailer",
    [
        "End of Project Gutenberg's The Lantern of Orren Vale, by Ada Quill",
        "End of the Project Gutenberg EBook of The Lantern of Orren\nVale, by Ada Quill",
        "Transcriber's Notes\n\nPage 3, a comma was added.\n\n10.21   lamp.[”]    "
        "Added.\n\n\n\nEnd of Project Gutenberg's The Lantern",
        "+------------------+\n| Typographical errors corrected in text: |\n| Page 3: "
        "lampp amended to lamp |\n+------------------+\n\n*       *       *",
        "{0}  The tales were released as a separate eText by Project\nGutenberg.",
    ],
)
def test_notes_and_last_lines_behind_the_book_go(trailer):
    start, end = (
        "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
    )
    assert clean(wrapped(start, end, after=trailer)).text == BOOK + "\n"


@pytest.mark.parametrize(
    "sentence",
    [
        "Produced by the sea and worn by the wind, the stone lay in his hand.",
        "He had transcribed the letter by candlelight.",
        "NOTE.\n\nThe author thanks her readers for their corrections.",
        "[Transcriber's note: a word is missing here.]",
        "EDITOR'S NOTE\n\nThe author was forty when this tale appeared.",
        "Johann Gutenberg printed here; so did the proof-reader, "
        "whose errors in spelling were many.",
    ],
)
def test_what_may_be_the_author_s_stays(sentence):
    first, second = BOOK.split("\n\nCHAPTER II")
    before, after = "The lamp burned on. " * 1200, "It burned on. " * 1200
    text = f"{first}\n\n{before}\n\n{sentence}\n\n{after}\n\nCHAPTER II{second}\n"
    assert clean(text.encode()).text == text
    text = f"{BOOK.replace('In the morning', sentence + ' In the morning')}\n"
    if "ranscriber's note" not in sentence:
        assert clean(text.encode()).text == text


def test_a_notice_inside_the_book_goes_alone():
    first, second = BOOK.split("\n\nCHAPTER II")
    notice = (
        "<<THIS ELECTRONIC VERSION IS PROVIDED BY PROJECT\n"
        "GUTENBERG ETEXT OF SOMEWHERE WITH PERMISSION. PROJECT GUTENBERG.>>"
    )
    assert clean(f"{first}\n\n{notice}\n\nCHAPTER II{second}\n".encode()).text == BOOK + "\n"


def test_a_long_line_that_names_the_project_is_left_alone():
    text = "word " * 3000 + "Project Gutenberg " + "word " * 3000
    assert clean(text.encode()).text == text.rstrip() + "\n"


@pytest.mark.parametrize(
    "line",
    [
        "** This is a COPYRIGHTED Project Gutenberg eBook, Details Below **",
        "Copyright Status: Copyrighted. Read the copyright notice inside this book for details.",
        "*END*THE SMALL PRINT! FOR COPYRIGHT PROTECTED ETEXTS*Ver.07.27.01*END*",
    ],
)
def test_a_copyrighted_book_is_not_kept(line):
    raw = wrapped(
        line + "\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
    )
    book = clean(raw)
    assert (book.kept, book.text, book.reason) == (
        False,
        "",
        "copyrighted: not in the public domain",
    )


def test_a_copyright_line_of_the_book_itself_does_not_matter():
    raw = wrapped(
        "Copyright Status: Not copyrighted in the United States.\n*** START OF THIS PROJECT "
        "GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
        book=BOOK.replace(
            "by Ada Quill", "by Ada Quill\n\nCOPYRIGHT, 1912\n\n_All rights reserved_"
        ),
    )
    assert clean(raw).kept


def test_a_file_with_nothing_between_its_markers_is_not_kept():
    book = clean(
        wrapped(
            "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
            "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
            book="",
        )
    )
    assert (book.kept, book.reason) == (False, "no text between the markers")


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html>\n<html><body>Blocked</body></html>",
        b'\xef\xbb\xbf\n <html lang="en">',
        b"<?xml version='1.0'?>\n<!DOCTYPE html>",
    ],
)
def test_a_web_page_is_refused(page):
    with pytest.raises(UserError, match="a web page instead of a plain-text book"):
        clean(page)


@pytest.mark.parametrize(
    "piece",
    [
        "\n",
        " \n",
        " ",
        "*",
        "*** ",
        "produced ",
        "a b c\n",
        "*** START OF THE PROJECT GUTENBERG EBOOK ",
    ],
)
def test_odd_files_take_no_longer_than_books(piece):
    began = time.process_time()
    clean((piece * (300_000 // len(piece))).encode())
    # takes a fraction of a second, or minutes if an expression is quadratic
    assert time.process_time() - began < 5


@settings(max_examples=50)
@given(st.lists(st.text("abc XYZ.,'\n*|", min_size=1, max_size=200), min_size=1, max_size=6))
def test_whatever_the_book_it_comes_out_as_it_went_in(pieces):
    body = "It began.\n\n" + "\n\n".join(pieces) + "\n\nIt ended."
    raw = wrapped(
        "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
        book=body,
    )
    assert clean(raw).text == body + "\n"


def test_clean_file_writes_text_and_record(tmp_path):
    raw = wrapped(
        "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
        before="Produced by Jane Doe",
        book=BOOK.replace("lamp", "lämp"),
    )
    (tmp_path / "raw.txt").write_bytes(raw.decode().replace("\n", "\r\n").encode("cp1252"))
    clean_file(tmp_path / "raw.txt", tmp_path / "clean/pg7.txt", tmp_path / "clean/pg7.json", 7)
    record = json.loads((tmp_path / "clean/pg7.json").read_text())
    text = (tmp_path / "clean/pg7.txt").read_bytes()
    assert text.decode() == BOOK.replace("lamp", "lämp") + "\n"
    assert record["markers"] == {
        "start": "*** START OF THIS PROJECT GUTENBERG EBOOK X ***",
        "end": "*** END OF THIS PROJECT GUTENBERG EBOOK X ***",
    }
    assert (
        record["id"],
        record["title"],
        record["author"],
        record["kept"],
        record["encoding"],
    ) == (
        7,
        "The Lantern of Orren Vale",
        "Ada Quill",
        True,
        "cp1252",
    )
    assert (record["bytes_in"], record["bytes_out"]) == (
        (tmp_path / "raw.txt").stat().st_size,
        len(text),
    )
    assert record["removed"] == ["Produced by Jane Doe"]
    assert sorted(path.name for path in (tmp_path / "clean").iterdir()) == ["pg7.json", "pg7.txt"]


def test_the_catalogue_s_title_goes_before_the_header_s(tmp_path):
    (tmp_path / "raw.txt").write_bytes(HEADER.encode() + BOOK.encode())
    clean_file(
        tmp_path / "raw.txt",
        tmp_path / "out.txt",
        tmp_path / "out.json",
        7,
        title="The Lantern",
        author="Quill, Ada",
    )
    record = json.loads((tmp_path / "out.json").read_text())
    assert (record["title"], record["author"]) == ("The Lantern", "Quill, Ada")


def test_a_skipped_book_leaves_an_empty_text_and_the_reason(tmp_path):
    (tmp_path / "raw.txt").write_bytes(
        b"** This is a COPYRIGHTED Project Gutenberg eBook **\n" + BOOK.encode()
    )
    clean_file(tmp_path / "raw.txt", tmp_path / "out.txt", tmp_path / "out.json", 16)
    record = json.loads((tmp_path / "out.json").read_text())
    assert (record["kept"], record["bytes_out"], (tmp_path / "out.txt").read_bytes()) == (
        False,
        0,
        b"",
    )
    assert "copyrighted" in record["reason"]


def test_clean_file_names_the_file_that_is_wrong_and_writes_nothing(tmp_path):
    (tmp_path / "raw.txt").write_bytes(b"<html>403 Forbidden</html>")
    with pytest.raises(
        UserError, match=r"raw\.txt: a web page .* nanoeuler gutenberg fetch --id 5"
    ):
        clean_file(tmp_path / "raw.txt", tmp_path / "out.txt", tmp_path / "out.json", 5)
    with pytest.raises(UserError, match=r"none\.txt: cannot be read .* fetch the book first"):
        clean_file(tmp_path / "none.txt", tmp_path / "out.txt", tmp_path / "out.json", 5)
    assert [path.name for path in tmp_path.iterdir()] == ["raw.txt"]


# The real files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<!---->" * 5_000 + "no page",
        "The Project Gutenberg Etext of " + "a by " * 10_000 + "* end",
        ("The Project Gutenberg Etext of " + "a by " * 60 + "* end\n") * 150,
    ],
)
def test_no_file_keeps_the_patterns_busy(text):
    began = time.process_time()
    clean(text.encode())
    assert time.process_time() - began < 5
