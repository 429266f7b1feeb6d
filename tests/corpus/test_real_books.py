"""The cleaner on the real books that may lie beside a checkout."""

import csv
import gzip
import re
from pathlib import Path

import pytest

from nanoeuler.corpus.decode import decode
from nanoeuler.corpus.gutenberg import clean

REAL = Path(__file__).resolve().parents[2] / "../shared/data/gutenberg"


COPYRIGHTED = {"pg16"}


NOTES_AT_THE_END = {
    "pg147",
    "pg779",
    "pg786",
    "pg1257",
    "pg19942",
    "pg30601",
    "pg31251",
    "pg37106",
    "pg56248",
}


CHAPTER = re.compile(
    r"^[^\S\n]*(?:CHAPTER|Chapter|BOOK|ACT|Act|CANTO|LETTER|Letter|VOLUME|Stave)"
    r"\s+(?:[IVXLC]+|\d+)\b.*$",
    re.MULTILINE,
)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.fixture(scope="module")
def real():
    """The real files by name: decoded text and cleaned book."""
    if not REAL.is_dir():
        pytest.skip(
            "no ../shared/data/gutenberg here: the 140 real files are not part of the repository"
        )
    found = {}
    with open(REAL / "index.csv", encoding="utf-8") as index:
        for row in csv.DictReader(index):
            raw = gzip.decompress((REAL / row["file"]).read_bytes())
            found[Path(row["file"]).name.removesuffix(".txt.gz")] = (decode(raw).text, clean(raw))
    assert len(found) == 155
    return found


def test_real_books_are_kept_but_for_the_copyrighted_one(real):
    assert {name for name, (_, book) in real.items() if not book.kept} == COPYRIGHTED


def test_real_books_have_markers_titles_and_readable_text(real):
    for name, (_, book) in real.items():
        assert book.start_marker, name
        assert book.unreadable == 0, name
        # the header of one is missing, that of the other names no title
        if name not in ("pg11-alice30-jevliu", "pg245"):
            assert book.title, name
    assert {name for name, (_, book) in real.items() if book.end_marker is None} == {
        "pg2264",
        "pg11-alice30-GITenberg",
    }


def test_real_doubly_encoded_books_are_mended(real):
    assert {name for name, (_, book) in real.items() if book.encoding == "utf-8 twice"} == {
        "pg1080-1080-0-benskov95",
        "pg11-11-0-benskov95",
        "pg98-98-0-benskov95",
    }
    assert "â\x80" not in "".join(book.text for _, book in real.values())


def test_real_books_contain_nothing_of_the_project_s_own(real):
    forbidden = (
        "project gutenberg",
        "project\ngutenberg",
        "small print!",
        "gutenberg.org",
        "public domain etext",
        "distributed proofread",
        "pgdp.net",
    )
    for name, (_, book) in real.items():
        lower = book.text.lower()
        assert not [words for words in forbidden if words in lower], name
        assert not re.search(
            r"^\W*(produced|prepared|transcribed|scanned|e-?text)\b", book.text[:200], re.IGNORECASE
        ), name


def test_real_books_lose_only_the_frame(real):
    for name, (whole, book) in real.items():
        if book.kept and name != "pg11-alice30-jevliu":
            assert 2_000 < len(whole) - len(book.text) < 45_000, name  # header, licence, notes
            assert sum(map(len, book.removed)) < min(15_000, 0.1 * len(book.text)), name


def test_real_books_are_their_files_paragraphs_in_order(real):
    for name, (whole, book) in real.items():
        position = 0
        for paragraph in re.split(r"\n{2,}", book.text.strip("\n")):
            position = whole.find(paragraph, position)
            assert position >= 0, (name, paragraph[:80])
            position += len(paragraph)


def test_real_books_keep_every_chapter_heading(real):
    for name, (whole, book) in real.items():
        if book.kept:
            assert CHAPTER.findall(book.text) == CHAPTER.findall(whole), name


def test_real_books_end_with_their_last_words(real):
    """These stand before the first line of the second half that names the project."""
    for name, (whole, book) in real.items():
        if book.kept and name not in NOTES_AT_THE_END:
            ends = [
                match.start()
                for match in re.finditer(
                    r"^.*(end of (the |this )?project gutenberg).*$",
                    whole,
                    re.IGNORECASE | re.MULTILINE,
                )
            ]
            end = next((found for found in ends if found > len(whole) / 3), len(whole))
            assert words(book.text[-2000:])[-20:] == words(whole[:end][-4000:])[-20:], name


def test_real_editions_of_a_book_clean_to_about_the_same(real):
    for plain, edition in [
        ("pg98", "pg98-98-0-benskov95"),
        ("pg98", "pg98-pg98-logicx24"),
        ("pg767", "pg767-agnsg10-GITenberg"),
    ]:
        assert len(real[plain][1].text) == pytest.approx(len(real[edition][1].text), rel=0.02)
