"""What a folder holds is read, or counted and named; one bad note does not hide the others."""

import bz2
import gzip
import lzma
import os
import random
from pathlib import Path

import duckdb
import pytest
from record_samples import lines

from nanoeuler import log
from nanoeuler.corpus.document_sources import OwnText
from nanoeuler.corpus.own_text import find
from nanoeuler.corpus.packed_files import UnfitText, find_zstd
from nanoeuler.corpus.sources.registry import choose_readers
from nanoeuler.corpus.text_files import Reading, read_documents
from nanoeuler.errors import UserError

TEXT = "The ferry came to the quay – late.\n" * 40
PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": find_zstd().compress,
}


@pytest.fixture(autouse=True)
def said(capsys):
    log.start()


def source(path: Path) -> OwnText:
    (found,) = choose_readers([str(path)])
    assert isinstance(found, OwnText)
    return found


def texts(path: Path) -> list[str]:
    return [text.decode() for _, text in source(path).read()]


@pytest.mark.parametrize("kind", [".txt", ".md", ".markdown", ".rst", ".TXT"])
@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_texts_are_read_packed_or_not(tmp_path, kind, suffix):
    pack = PACKERS.get(suffix, lambda raw: raw)
    file = tmp_path / f"note{kind}{suffix}"
    file.write_bytes(pack(TEXT.encode()))
    assert texts(tmp_path) == texts(file) == [TEXT]


@pytest.mark.parametrize("suffix", PACKERS)
def test_several_streams_in_a_packed_file_are_one_text(tmp_path, suffix):
    (tmp_path / f"a.txt{suffix}").write_bytes(PACKERS[suffix](TEXT.encode()) * 2)
    assert texts(tmp_path) == [TEXT * 2]


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_packed_file_is_refused_by_name(tmp_path, suffix):
    packed = PACKERS[suffix](os.urandom(5000).hex().encode())
    for damaged in (packed[: len(packed) // 2], b"no such thing" * 9):
        file = tmp_path / f"a.txt{suffix}"
        file.write_bytes(damaged)
        with pytest.raises(UnfitText, match=r"a\.txt\..*: damaged, or not what its name says"):
            list(read_documents(file))


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_packed_bomb_is_refused_before_it_is_unpacked(tmp_path, suffix):
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(PACKERS[suffix](b"w" * 70_000_000))
    with pytest.raises(UnfitText, match=r"unpacks to more than 50,000,000 bytes"):
        list(read_documents(file))


def test_each_record_is_a_document_and_what_has_no_text_is_counted(tmp_path, capsys):
    records = b"\n" + lines(
        *({"text": None}, {"text": "One."}, {"text": "Two é."}, {"id": 1}, [1]),
        {"text": "6?\ud83d"},
    )
    (tmp_path / "pages.jsonl").write_bytes(records)
    (tmp_path / "more.jsonl.gz").write_bytes(gzip.compress(lines({"text": "Three."})))
    (tmp_path / "chats.jsonl").write_bytes(lines({"messages": []}))
    for name, rows in (
        ("rows", "(1, null), (2, 'Four ü.'), (3, 'Five.')) t(id, text)"),
        ("ids", "(1)) t(id)"),
    ):
        duckdb.execute(f"copy (select * from (values {rows}) to '{tmp_path / name}.parquet'")
    assert texts(tmp_path) == ["Three.", "One.", "Two é.", "6??", "Four ü.", "Five."]
    said = capsys.readouterr().err
    assert "pages.jsonl: 1 record with half a character" in said
    assert "pages.jsonl: 3 records without a `text` left out" in said
    assert "rows.parquet: 1 record without a `text` left out" in said
    assert "left out 1 .jsonl without `text`, 1 .parquet without `text`" in said
    with pytest.raises(UserError, match=r"ids\.parquet: none of its records has a `text`"):
        texts(tmp_path / "ids.parquet")


def test_records_of_a_folder_that_are_damaged_are_refused_and_others_without_a_text_left_out(
    tmp_path,
):
    (tmp_path / "good.jsonl").write_bytes(lines({"text": "One."}))
    (tmp_path / "list.jsonl").write_bytes(b'["a"]\n["b"]\n')
    assert texts(tmp_path) == ["One."]
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(lines({"text": "Two."}))[:-9])
    (tmp_path / "old.jsonl").write_bytes('{"text": "Drüben"}\n'.encode("cp1252"))
    (tmp_path / "pointer.parquet").write_bytes(b"version https://git-lfs.example/spec/v1\n")
    with pytest.raises(UserError, match="3 files cannot be read") as refused:
        texts(tmp_path)
    for name in ("cut.jsonl.gz: ", "old.jsonl: not UTF-8", "pointer.parquet: damaged parquet"):
        assert f"{tmp_path}/{name}" in str(refused.value)


def test_documents_in_a_file_part_at_the_end_of_text_or_at_a_line_of_one_s_own(tmp_path):
    file = tmp_path / "all.txt"
    file.write_text("One.\n<|endoftext|>\nTwo <|endoftext|> here.\n  <|endoftext|>\n\nThree.\n")
    assert [text.strip() for text in texts(file)] == ["One.", "Two <|endoftext|> here.", "Three."]
    file.write_text("One.\n* * *\nTwo.\n* * * *\nstill\n<|endoftext|>\n* * *  \n* * *\n")
    entry = {"path": str(file), "separator": "* * *"}
    (found,) = choose_readers([], config={"corpus": {"sources": [entry]}})
    read = list(found.read())
    assert [text for _, text in read] == [
        b"One.\n",
        b"\nTwo.\n* * * *\nstill\n<|endoftext|>\n",
    ]
    assert len({key for key, _ in read}) == 2  # each is held out for itself


def test_pieces_of_a_document_stay_together_and_its_neighbours_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoeuler.corpus.text_files.PIECE", 1000)
    first, last = "One word. " * 300, "Another word. " * 200
    (tmp_path / "a.txt").write_text(f"{first}\n<|endoftext|>\n{last}")
    read = list(source(tmp_path / "a.txt").read())
    assert len(read) > 3
    assert len({key for key, _ in read}) == 2


def test_blank_notes_are_skipped_and_counted(tmp_path, capsys):
    for name, raw in {
        "a.md": b"\n",
        "b.md": b" \t\r\n",
        "c.md": b"\xef\xbb\xbf",
        "d.md": b"\0\0\0\0",
        "e.md": b"",
        "f.md": TEXT.encode(),
    }.items():
        (tmp_path / name).write_bytes(raw)
    found = source(tmp_path)
    assert [text.decode() for _, text in found.read()] == [TEXT]
    assert sorted(Path(name).name for name in found.left_out) == ["a.md", "b.md", "c.md", "d.md"]
    said = capsys.readouterr().err
    assert "left out 4 blank files" in said
    assert "left out 1 empty" in said


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("a.txt", b"", "empty; leave it out or put text into it"),
        ("a.txt", b" \r\n\t \n", "empty; leave it out or put text into it"),
        ("a.jsonl", b'{"body": "words"}\n', "none of its records has a `text`; rename the field"),
    ],
)
def test_a_file_without_text_by_itself_is_refused(tmp_path, name, raw, sentence):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError, match=f"{name}: {sentence}"):
        texts(tmp_path / name)


def test_the_size_of_a_packed_file_is_about_that_of_its_text(tmp_path):
    choose = random.Random(1)
    words = ["".join(choose.choices("abcdefghijklmnop", k=5)) for _ in range(500)]
    prose = " ".join(choose.choices(words, k=9000))
    (tmp_path / "a.txt").write_text(prose)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(prose.encode()))
    assert source(tmp_path / "a.txt").size() == len(prose)
    assert source(tmp_path / "b.txt.gz").size() == pytest.approx(len(prose), rel=0.5)


def test_all_bad_files_are_named_at_once_each_with_its_first_bad_byte(tmp_path):
    good = "“Words” – ".encode() * 50_000
    for name, raw in {
        "a.md": good[:700_000] + b"\xff" + good[700_000:],
        "b.md": TEXT.encode(),
        "c.md": b"A line\0.\n",
        "e.txt.gz": b"nothing",
    }.items():
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError) as caught:
        texts(tmp_path)
    first, *others = str(caught.value).split("\n  ")
    assert first == "3 files cannot be read as text:"
    assert [line.split(": ")[0].rpartition("/")[2] for line in others] == [
        *("a.md", "c.md", "e.txt.gz"),
    ]
    assert "byte 700,000 cannot be read as utf-8" in others[0]
    assert "byte 6 is NUL" in others[1]


def test_other_kinds_of_file_are_counted_and_named(tmp_path, capsys):
    for name in ("a.md", "b.html", "c.html", "d.docx", "Makefile", ".hidden.md", "deep/.git/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    assert texts(tmp_path) == ["text\n"]
    said = capsys.readouterr().err
    assert "left out 2 .html, 1 .docx, 1 without a suffix, 2 hidden" in said


def test_links_are_followed_once_and_what_is_not_entered_is_said(tmp_path):
    notes, elsewhere = tmp_path / "notes", tmp_path / "elsewhere"
    for name in ("notes/b.md", "notes/deep/c.md", "elsewhere/d.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n")
    (notes / "a-link.md").symlink_to("b.md")
    (notes / "again").symlink_to("deep")
    (notes / "deep/up").symlink_to("..")  # a circle
    (notes / "other").symlink_to(elsewhere)
    (notes / "other2").symlink_to(elsewhere)
    (notes / "gone.md").symlink_to("nowhere.md")
    os.mkfifo(notes / "pipe.md")
    files, notices = find(str(notes))
    assert [str(file.relative_to(notes)) for file in files] == ["b.md", "deep/c.md", "other/d.md"]
    assert notices == [
        f"{notes}: left out not entered: {notes}/pipe.md (no file), "
        f"{notes}/gone.md (a link to nothing)"
    ]


def test_an_encoding_that_is_named_is_taken(tmp_path):
    (tmp_path / "a.txt").write_bytes("Ж".encode("cp866"))
    assert list(read_documents(tmp_path / "a.txt", Reading("cp866"))) == ["Ж"]
    (tmp_path / "a.txt").write_bytes(b"ab\x81\x20")
    with pytest.raises(UnfitText, match=r"byte 2 cannot be read as cp932"):
        list(read_documents(tmp_path / "a.txt", Reading("cp932")))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "koi8-r"])
def test_an_encoding_is_named_for_the_files_that_are_not_unicode(tmp_path, encoding):
    """As the advice to name it is followed: for a folder of many files, of which one needs it."""
    (tmp_path / "a.txt").write_bytes("Туман".encode(encoding))
    assert list(read_documents(tmp_path / "a.txt", Reading("koi8-r"))) == ["Туман"]


@pytest.mark.parametrize("encoding", ["utf-7", "utf-16-le", "utf-32"])
def test_an_encoding_that_looks_like_another_is_taken_where_it_is_named(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("Nebel, Brücken.".encode(encoding))
    assert list(read_documents(tmp_path / "a.txt", Reading(encoding))) == ["Nebel, Brücken."]
