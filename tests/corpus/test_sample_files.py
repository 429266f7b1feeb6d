"""The files of the invented world: books, pages and their sources."""

from collections import Counter
from pathlib import Path

import duckdb
import pytest
import yaml
from invented_world import DEFAULTS

from nanoeuler.corpus.gutenberg import clean
from nanoeuler.corpus.sample.books import BOOKS, LINE, Book, book_text
from nanoeuler.corpus.sample.world import World

REPOSITORY = Path(__file__).resolve().parents[2]


def test_books_come_in_all_wrappings() -> None:
    styles = Counter(book.wrapping.style for book in BOOKS)
    assert set(styles) == {
        "modern",
        "this",
        "tight",
        "two lines",
        "comma",
        "small print",
        "endless",
        "unmarked",
        "copyrighted",
    }
    assert {book.wrapping.encoding for book in BOOKS} == {"utf-8-sig", "utf-8", "latin-1", "ascii"}
    assert {book.wrapping.newline for book in BOOKS} == {"\n", "\r\n"}
    assert {book.wrapping.path for book in BOOKS} == {None, "-8", "-0", ""}
    # two titles have two editions
    assert Counter(book.title for book in BOOKS).most_common(3)[1][1] == 2


def test_a_mirror_has_books_in_both_trees(demo: Path) -> None:
    assert (demo / "gutenberg/cache/epub/90001/pg90001.txt").is_file()
    assert (demo / "gutenberg/9/0/0/0/90003/90003-8.txt").is_file()
    assert not (demo / "gutenberg/cache/epub/90003").exists()


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: str(book.id))
def test_a_file_holds_its_book_between_its_markers(book: Book, demo: Path, world: World) -> None:
    raw = (demo / "gutenberg" / book.wrapping.location(book.id)).read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf") == (book.wrapping.encoding == "utf-8-sig")
    assert (b"\r\n" in raw) == (book.wrapping.newline == "\r\n")
    assert raw.count(b"\n") == raw.count(book.wrapping.newline.encode())
    text = raw.decode(book.wrapping.encoding).replace("\r\n", "\n")
    inside = book_text(book, world, DEFAULTS.seed, DEFAULTS.paragraphs_per_book)
    if book.wrapping.encoding != "ascii":
        assert inside in text
    before, after = text.split("CHAPTER 1\n")[0], text.rsplit("CHAPTER", 1)[1]
    assert ("START OF TH" in before) == (
        book.wrapping.style in ("modern", "this", "tight", "two lines", "comma", "copyrighted")
    )
    assert ("*END*THE SMALL PRINT!" in before) == (
        book.wrapping.style in ("small print", "endless")
    )
    assert ("END OF TH" in after.upper()) == (book.wrapping.style not in ("endless", "unmarked"))


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: str(book.id))
def test_the_cleaner_finds_the_book_and_nothing_else(book: Book, demo: Path, world: World) -> None:
    cleaned = clean((demo / "gutenberg" / book.wrapping.location(book.id)).read_bytes())
    if book.wrapping.style == "copyrighted":
        assert not cleaned.kept
        return
    inside = book_text(book, world, DEFAULTS.seed, DEFAULTS.paragraphs_per_book)
    assert (
        cleaned.text.strip()
        == (inside.replace("é", "e") if book.wrapping.encoding == "ascii" else inside).strip()
    )
    if book.wrapping.style != "unmarked":
        assert (cleaned.title, cleaned.author) == (book.title, book.author)


def test_a_book_is_set_in_lines(world: World) -> None:
    assert max(map(len, book_text(BOOKS[0], world, 1, 40).splitlines())) <= LINE


def test_editions_tell_the_same(world: World) -> None:
    first, second = (
        book_text(book, world, 1, 40) for book in BOOKS if book.title == "Letters from Elmsea"
    )
    assert "SECOND EDITION" in second
    assert first.split("CHAPTER 1")[1] == second.split("CHAPTER 1")[1]


def test_some_letters_are_not_ascii(demo: Path) -> None:
    latin = next(book for book in BOOKS if book.wrapping.encoding == "latin-1")
    raw = (demo / "gutenberg" / latin.wrapping.location(latin.id)).read_bytes()
    with pytest.raises(UnicodeDecodeError):
        raw.decode("utf-8")


def test_the_sources_file_lists_the_books_and_files_that_are_written(demo: Path) -> None:
    sources = yaml.safe_load((REPOSITORY / "config/sample.yaml").read_text(encoding="utf-8"))
    listed = [(book["id"], book["title"], book["author"]) for book in sources["gutenberg"]["books"]]
    assert listed == [(book.id, book.title, book.author) for book in BOOKS]
    urls = [
        sources["fineweb"]["shards"][0]["url"],
        sources["instructions"]["world"]["url"],
        sources["questions"]["world"]["url"],
    ]
    assert all(
        (demo / url.removeprefix("{data_dir}/sample/")).is_file()
        for url in [*urls, "{data_dir}/sample/gutenberg/cache/epub/90001/pg90001.txt"]
    )


def test_pages_have_the_schema_of_fineweb_edu(demo: Path) -> None:
    schema = duckdb.sql(f"describe select * from '{demo}/fineweb/000.parquet'").fetchall()
    assert [(name, kind) for name, kind, *_ in schema] == [
        ("text", "VARCHAR"),
        ("id", "VARCHAR"),
        ("dump", "VARCHAR"),
        ("url", "VARCHAR"),
        ("file_path", "VARCHAR"),
        ("language", "VARCHAR"),
        ("language_score", "DOUBLE"),
        ("token_count", "BIGINT"),
        ("score", "DOUBLE"),
        ("int_score", "BIGINT"),
    ]


def test_pages_lie_in_several_row_groups(demo: Path) -> None:
    ((groups,),) = duckdb.sql(
        f"select count(distinct row_group_id) from parquet_metadata('{demo}/fineweb/000.parquet')"
    ).fetchall()
    assert groups > 1


def test_there_is_something_for_every_filter(demo: Path) -> None:
    def count(condition: str) -> int:
        return len(
            duckdb.sql(f"select 1 from '{demo}/fineweb/000.parquet' where {condition}").fetchall()
        )

    assert count("int_score < 3") > 0
    assert count("language <> 'en'") > 0
    assert count("language_score < 0.65") > 0
    assert count("length(text) < 200") > 0
    assert (
        count("true")
        - len(duckdb.sql(f"select distinct text from '{demo}/fineweb/000.parquet'").fetchall())
        > 50
    )
    kept = "int_score >= 3 and language = 'en' and language_score >= 0.65 and length(text) >= 200"
    assert count(kept) > 0.8 * count("true")
