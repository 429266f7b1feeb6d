"""One's own .txt and .md files, by path, folder or glob."""

import contextlib
import itertools
import os
import tempfile
import unicodedata
from pathlib import Path

import pytest

from nanoeuler import log
from nanoeuler.corpus import text_files
from nanoeuler.corpus.own_text import find, find_files, slug
from nanoeuler.corpus.sample.books import STYLES, Wrapping
from nanoeuler.corpus.text_files import read_documents
from nanoeuler.errors import UserError


@pytest.fixture
def shelf(tmp_path):
    for name in (
        "b.txt",
        "a.md",
        "c.TXT",
        "notes.docx",
        ".hidden.txt",
        "deep/er/d.md",
        ".git/e.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}\n")
    return tmp_path


def names(folder, files):
    return [str(file.relative_to(folder)) for file in files]


def test_a_folder_gives_its_text_files_sorted_to_the_bottom_without_hidden_ones(shelf):
    assert names(shelf, find_files(str(shelf))) == ["a.md", "b.txt", "c.TXT", "deep/er/d.md"]


def test_a_search_that_takes_long_says_how_far_it_is(shelf, monkeypatch, capsys):
    log.start()
    monkeypatch.setattr(log.time, "monotonic", itertools.count().__next__)
    find_files(str(shelf))
    assert "search done=2 files rate=1 files/s texts=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["b.txt"]),
        ("**/*.md", ["a.md", "deep/er/d.md"]),
        ("[ab].*", ["a.md", "b.txt"]),
        ("dee*", ["deep/er/d.md"]),
        ("*", ["a.md", "b.txt", "c.TXT", "deep/er/d.md"]),
    ],
)
def test_a_glob_gives_the_text_files_that_it_matches(shelf, pattern, expected):
    assert names(shelf, find_files(str(shelf / pattern))) == expected


def test_a_name_with_glob_characters_that_exists_is_that_file(shelf):
    (shelf / "novel [draft].txt").write_text("text\n")
    assert names(shelf, find_files(str(shelf / "novel [draft].txt"))) == ["novel [draft].txt"]


def test_a_path_may_start_at_home(shelf, monkeypatch):
    monkeypatch.setenv("HOME", str(shelf))
    assert names(shelf, find_files("~/b.txt")) == ["b.txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.txt", r"none\.txt: no such file or folder; correct the path"),
        ("*.text", r"\*\.text: has no file with text in it"),
        ("notes.docx", r"notes\.docx: not a file of text; save it as plain text"),
        (".git/none", r"none: no such file"),
        ("link.txt", r"link\.txt: a link to nothing; correct the path"),
        ("pipe.txt", r"pipe\.txt: not a file of text; save it as plain text"),
    ],
)
def test_a_path_without_text_is_refused_in_one_sentence(shelf, path, message):
    (shelf / "link.txt").symlink_to("link.txt")
    os.mkfifo(shelf / "pipe.txt")
    with pytest.raises(UserError, match=message):
        find_files(str(shelf / path))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no file with text in it"):
        find_files(str(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_and_line_ends_are_made_one(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("Zoë’s\r\ncafé\r\n".encode(encoding))
    assert list(read_documents(tmp_path / "a.txt")) == ["Zoë’s\ncafé\n"]


def test_a_guessed_encoding_is_said_when_asked(tmp_path, capsys):
    log.start()
    (tmp_path / "a.txt").write_bytes("café".encode("cp1252"))
    list(read_documents(tmp_path / "a.txt"))
    assert "cp1252" not in capsys.readouterr().err
    list(read_documents(tmp_path / "a.txt", aloud=True))
    assert "a.txt was read as cp1252" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"PK\x03\x04\0\0zip", r"a\.txt: a binary file, not text: byte 4 is NUL"),
        (b"One line.\nOne NUL \0.\n", r"a\.txt: a binary file, not text: byte 18 is NUL"),
        ("no mark".encode("utf-16-le"), r"a\.txt: a binary file, not text.*UTF-8"),
        (
            "“word” ".encode() * 50 + b"\xff",
            r"a\.txt: byte 550 cannot be read as utf-8, as what is before it can; mend it, or name "
            r"its encoding: `train --encoding NAME`",
        ),
        (
            bytes(range(128, 256)),
            r"a\.txt: not UTF-8 from byte 0 on, nor in another encoding that is recognised",
        ),
    ],
)
def test_what_is_not_text_is_refused_by_name(tmp_path, raw, message):
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(UserError, match=message):
        list(read_documents(tmp_path / "a.txt"))


@contextlib.contextmanager
def ordinary_user():
    """Root may read everything; for this while it is nobody."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_an_unreadable_file_is_refused_by_name():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.txt"
        file.write_text("text")
        file.chmod(0)
        Path(folder).chmod(0o755)
        with ordinary_user(), pytest.raises(UserError, match=r"a\.txt: cannot be read"):
            list(read_documents(file))


@pytest.mark.parametrize(
    ("unit", "ends"),
    [
        ("A word or two – é.\n\n", "\n\n"),
        ("A line – é.\n", "\n"),
        ("Wörds ", " "),
        ("A line – é.\r\n\r\n", "\n\n"),
    ],
)
def test_a_large_file_is_read_in_pieces_that_end_with_a_paragraph_a_line_or_a_word(
    tmp_path, monkeypatch, unit, ends
):
    monkeypatch.setattr(text_files, "PIECE", 1000)
    whole = "\ufeff" + unit * 500
    (tmp_path / "a.txt").write_bytes(whole.encode())
    pieces = list(read_documents(tmp_path / "a.txt"))
    assert "".join(pieces) == (unit * 500).replace("\r\n", "\n")
    assert len(pieces) > 2
    assert all(len(piece.encode()) <= 2000 and piece.endswith(ends) for piece in pieces)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("人们读书写字。" * 400, "。"),
        ("ภาษาไทยไม่มีช่องว่าง" * 100, ""),
        ("ACGT" * 1500, ""),
        ("क्या हाँ।" * 300, "।"),
        ("e\u0301\u0323" * 900, "\u0323"),
        ("\N{MAN}\u200d\N{PERSONAL COMPUTER}" * 400, "\N{PERSONAL COMPUTER}"),
    ],
)
def test_a_large_file_without_spaces_is_cut_after_a_sentence_or_a_whole_character(
    tmp_path, monkeypatch, text, ends
):
    monkeypatch.setattr(text_files, "PIECE", 1000)
    (tmp_path / "a.txt").write_text(text)
    pieces = list(read_documents(tmp_path / "a.txt"))
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert all(len(piece.encode()) <= 2000 and piece.endswith(ends) for piece in pieces)
    assert not any(unicodedata.category(piece[0]).startswith("M") for piece in pieces)


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "shift-jis"])
def test_a_large_file_in_another_encoding_is_read_in_pieces_too(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(text_files, "PIECE", 1001)  # within a character
    text = "人々は本を読み、字を書く。" * 500
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    pieces = list(read_documents(tmp_path / "a.txt"))
    assert "".join(pieces) == text
    assert len(pieces) > 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("novel.txt", "novel"),
        ("My Books/Part One.MD", "my-books-part-one"),
        ("texts/*.txt", "texts"),
        ("texts/", "texts"),
        ("/home/ada/роман.txt", "home-ada-роман"),
        ("../a__b..c.txt", "a-b-c"),
        ("novel.txt.gz", "novel"),
        ("Pages.JSONL.zst", "pages"),
        ("***", "text"),
        ("x" * 100 + "/end.txt", "x" * 56 + "-end"),
    ],
)
def test_the_slug_of_a_path_is_a_plain_name(path, expected):
    assert slug(path) == expected


def gutenberg_file(style: str, text: str) -> str:
    wrapping = Wrapping(style, "utf-8", "\n")
    return wrapping.wrap(text, "The Quay", "Amos Tiller", 90023).decode()


def novel(word: str) -> str:
    return "\n\n".join(f"The {word} came to the quay on day {day}." for day in range(500))


@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"unmarked"}))
def test_header_and_licence_of_gutenberg_are_left_out_and_said(tmp_path, capsys, style):
    log.start()
    (tmp_path / "a.txt").write_text(gutenberg_file(style, novel("ferry")))
    (read,) = read_documents(tmp_path / "a.txt", aloud=True)
    assert read.strip() == novel("ferry")
    assert "of Project Gutenberg's header and licence left out" in capsys.readouterr().err


def test_books_that_follow_one_another_in_a_file_become_documents_without_what_is_between(tmp_path):
    words = ("ferry", "pedlar", "inn")
    whole = "".join(gutenberg_file("modern", novel(word)) for word in words)
    (tmp_path / "all.txt").write_text(whole)
    assert [text.strip() for text in read_documents(tmp_path / "all.txt")] == [
        novel(word) for word in words
    ]


def test_a_text_without_markers_stays_as_it_is(tmp_path):
    text = "Produced by me.\n\n\n" + novel("ferry") + "\n\nEnd of the project.\n"
    (tmp_path / "a.txt").write_text(text)
    assert list(read_documents(tmp_path / "a.txt")) == [text]


def test_an_empty_file_in_a_folder_is_left_out(shelf):
    (shelf / "deep" / "empty.txt").touch()
    assert names(shelf, find_files(str(shelf / "deep"))) == ["deep/er/d.md"]


def test_what_nanoeuler_has_written_is_no_text_of_ones_own(tmp_path, monkeypatch):
    """Folders with our mark, models, folders of a program, and links to them."""
    monkeypatch.chdir(tmp_path)
    ours = {
        "results/a/README.md": ("results/a/.made-by-nanoeuler", ""),
        "exported/README.md": ("exported/.nanoeuler", '{"files": ["README.md"]}'),
        "models/m/README.md": ("models/m/config.json", '{"nanoeuler": "1.0"}'),
        "data/corpora/n/train/text.txt": ("data/corpora/.made-by-nanoeuler", ""),
        "data/gutenberg/classics/raw/pg84.txt": ("data/gutenberg/.made-by-nanoeuler", ""),
        "env/lib/LICENSE.txt": ("env/pyvenv.cfg", ""),
    }
    for name, sign in ours.items():
        for path, content in ((name, "text\n"), sign):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(content)
    own = ["data/letters/b.txt", "n.md", "results/manifest.txt", "tasks/c.md"]
    for name in own:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text\n")
    Path("link.md").symlink_to("results/a/README.md")

    for path in (".", "**/*.*", "*"):
        files, (notice,) = find(path)
        assert [str(file) for file in files] == own
        assert notice.startswith(f"{path}: left out 6 files in ")
        assert notice.endswith(", written by nanoeuler or installed with a program")
    for path in ("results/a", "data/corpora", "data/corpora/n/train", "data/gut*/*/raw/*.txt"):
        with pytest.raises(
            UserError, match=r"has no file with text in it but 1 file in .*, written by nano"
        ):
            find(path)
    assert find("env").files == [Path("env/lib/LICENSE.txt")]  # its owner works in it
    for name in ours:  # each can be had by its own name
        assert find(name) == ([Path(name)], [])
