"""Books from a mirror over real HTTP: addresses tried, files refused, nothing asked twice."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from nanoeuler.cli import main
from nanoeuler.corpus.gutenberg_mirror import fetch_book, wrong_with
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from tests.servers import BLOCK_PAGE, Fault, lay_out_books

QUICK = Patience(attempts=3, first_pause=0.01, silence=5.0)


def make_book(number: int) -> bytes:
    text = [
        f"The Project Gutenberg eBook of Book {number}",
        "",
        f"Title: Book {number}",
        f"Release date: May 1, 2001 [eBook #{number}]",
        "",
        f"*** START OF THE PROJECT GUTENBERG EBOOK BOOK {number} ***",
        "",
        *(f"This is line {line} of the book, and it says nothing else." for line in range(200)),
        "",
        f"*** END OF THE PROJECT GUTENBERG EBOOK BOOK {number} ***",
        "",
        "Updated editions will replace the previous one.",
    ]
    return "\r\n".join(text).encode()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "pg1342.txt"


def test_a_book_is_kept_as_served_and_never_asked_for_again(server, output):
    server.put("cache/epub/1342/pg1342.txt", make_book(1342))
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.read_bytes() == make_book(1342)
    assert [path.name for path in output.parent.iterdir()] == ["pg1342.txt"]
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert server.requests() == 1


@pytest.mark.parametrize(
    "path", ["1/3/4/1342/1342-0.txt", "1/3/4/1342/1342-8.txt", "1/3/4/1342/1342.txt"]
)
def test_the_older_tree_is_the_second_choice(server, output, path):
    server.put(path, make_book(1342))
    fetch_book(f"{server.url}/", 1342, output, 0, QUICK)
    assert output.exists()
    assert server.seen[0].path == "/cache/epub/1342/pg1342.txt"
    assert server.seen[-1].path == f"/{path}"


def test_a_number_of_one_digit_lies_under_zero(server, output):
    server.put("0/8/8.txt", make_book(8))
    fetch_book(server.url, 8, output, 0, QUICK)
    assert output.exists()


def test_a_good_old_file_is_taken_when_the_new_one_is_a_block_page(server, output):
    server.put("cache/epub/1342/pg1342.txt", BLOCK_PAGE)
    server.put("1/3/4/1342/1342-0.txt", make_book(1342))
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.read_bytes() == make_book(1342)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (BLOCK_PAGE, "a web page instead of a book"),
        (b"", "an empty file"),
        (b"\r\n \r\n", "an empty file"),
        (make_book(1342)[:-300], "a truncated book: it has a start marker but no end"),
        (make_book(1343), "the text of book 1343 instead of 1342"),
        (b"PK\x03\x04" + bytes(range(256)) * 20, "not plain text"),
        (
            b"Too many requests. Come back tomorrow.",
            "no book but a text of 38 characters: 'Too many",
        ),
    ],
)
def test_what_is_no_book_is_refused_in_one_sentence_and_not_kept(server, output, content, sentence):
    server.put("cache/epub/1342/pg1342.txt", content)
    with pytest.raises(
        UserError,
        match=rf"/cache/epub/1342/pg1342.txt: {sentence}.*; try again later, name another mirror",
    ):
        fetch_book(server.url, 1342, output, 0, QUICK)
    assert list(output.parent.iterdir()) == []


def test_a_book_without_any_markers_is_accepted(server, output):
    server.put("cache/epub/1342/pg1342.txt", b"Ein Buch ohne alles.\n" * 100)
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.exists()


def test_a_book_that_the_mirror_does_not_have_is_said(server, output):
    with pytest.raises(
        UserError,
        match=r"has no plain text of book 1342; correct its number, or name another mirror",
    ):
        fetch_book(server.url, 1342, output, 0, QUICK)
    assert server.requests() == 4


def test_a_mirror_that_redirects_to_another_scheme_or_host_still_says_what_is_missing(
    server, output
):
    server.fail(
        "/cache/epub/1342/pg1342.txt",
        Fault(status=301, headers={"Location": f"http://localhost:{server.port}/nothing"}),
    )
    server.put("1/3/4/1342/1342-0.txt", make_book(1342))
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.exists()


def test_a_body_shorter_than_announced_is_completed(server, output):
    server.put("cache/epub/1342/pg1342.txt", make_book(1342))
    server.fail(
        "/cache/epub/1342/pg1342.txt",
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(truncate=True, after=4_000),
    )
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.read_bytes() == make_book(1342)
    assert server.seen[-1].headers["Range"] == "bytes=4000-"


def test_a_bad_file_of_an_earlier_time_is_fetched_again(server, output):
    server.put("cache/epub/1342/pg1342.txt", make_book(1342))
    output.parent.mkdir()
    output.write_bytes(BLOCK_PAGE)
    fetch_book(server.url, 1342, output, 0, QUICK)
    assert output.read_bytes() == make_book(1342)


def test_a_local_folder_is_a_mirror_too(tmp_path, output):
    book = tmp_path / "mirror" / "1" / "3" / "4" / "1342" / "1342-0.txt"
    book.parent.mkdir(parents=True)
    book.write_bytes(make_book(1342))
    fetch_book(str(tmp_path / "mirror"), 1342, output)
    assert output.read_bytes() == make_book(1342)
    with pytest.raises(UserError, match="has no plain text of book 7"):
        fetch_book((tmp_path / "mirror").as_uri(), 7, output.with_name("pg7.txt"))
    with pytest.raises(UserError, match=r"nowhere: no such folder; correct gutenberg\.mirror"):
        fetch_book(str(tmp_path / "nowhere"), 7, output.with_name("pg7.txt"))


def test_the_stage_fetches_and_cleans_by_command_line(server, tmp_path, output, command):
    server.put("cache/epub/1342/pg1342.txt", make_book(1342))
    config = json.dumps(
        {"sources": {"gutenberg": {"collection": "g", "mirror": server.url, "delay_seconds": 0.2}}}
    )
    text, record = tmp_path / "clean" / "pg1342.txt", tmp_path / "clean" / "pg1342.json"
    fetched = "--output", output, "--log", tmp_path / "fetch.log"
    cleaned = "--input", output, "--output", text, "--record", record
    assert command("gutenberg", "fetch", "--config", config, "--id", "1342", *fetched)[0] == 0
    assert command("gutenberg", "clean", "--id", "1342", *cleaned)[0] == 0
    assert text.read_text(encoding="utf-8").startswith("This is line 0 of the book")
    assert json.loads(record.read_text(encoding="utf-8"))["kept"]
    assert "fetched" in (tmp_path / "fetch.log").read_text(encoding="utf-8")


def test_the_stage_ends_with_one_sentence(server, tmp_path, output, capsys):
    config = json.dumps(
        {"sources": {"gutenberg": {"collection": "g", "mirror": server.url, "delay_seconds": 0}}}
    )
    assert (
        main(["gutenberg", "fetch", "--config", config, "--id", "5", "--output", str(output)]) == 1
    )
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["gutenberg", "fetch", "--config", "{}", "--id", "5", "--output", str(output)]) == 1
    assert "sources.gutenberg" in capsys.readouterr().err


def test_every_real_book_passes_and_its_first_half_does_not(real_data):
    with open(real_data / "gutenberg" / "index.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        raw = gzip.decompress((real_data / "gutenberg" / row["file"]).read_bytes())
        assert wrong_with(raw, int(row["id"])) is None, row["file"]
        if (
            "SMALL PRINT" not in row["start_marker"]
            and row["start_marker"]
            and int(row["bytes"]) < 300_000
        ):
            assert wrong_with(raw[: len(raw) // 2], int(row["id"])) is not None, row["file"]


def test_real_books_come_over_http_byte_by_byte(server, real_data, tmp_path):
    lay_out_books(server.root, real_data / "gutenberg")
    for book in (11, 2264, 9198):
        fetch_book(server.url, book, tmp_path / f"pg{book}.txt", 0, QUICK)
        assert (tmp_path / f"pg{book}.txt").read_bytes() == gzip.decompress(
            (real_data / "gutenberg" / f"pg{book}.txt.gz").read_bytes()
        )
