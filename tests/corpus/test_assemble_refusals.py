"""What does not fit together is refused, and a failure leaves the older corpus as it was."""

import socket
from pathlib import Path

import pytest
from corpus_samples import run, write_book, write_pages

from nanoeuler.corpus.extracted_pages import index_of
from nanoeuler.storage import folders


@pytest.mark.parametrize(
    ("sources", "given", "message"),
    [
        (
            [],
            [],
            "no text to build a corpus of; name gutenberg, fineweb, documents or a path of your "
            "own in corpus.sources",
        ),
        (
            ["gutenberg"],
            [],
            "corpus.sources names gutenberg, but no files of it were given; give them with --books",
        ),
        (
            ["fineweb"],
            [],
            "corpus.sources names fineweb, but no files of it were given; give them with --fineweb",
        ),
        (
            ["fineweb"],
            ["--books", "pg1.txt"],
            "corpus.sources does not name gutenberg, but files of it were given",
        ),
        (["gutenberg"], ["--books", "pg1.txt"], "pg1.txt: no such file; clean the book first"),
        (["fineweb"], ["--fineweb", "none.txt"], "none.txt: no such file; extract it first"),
        (["nothing.txt"], [], "nothing.txt: no such file or folder"),
        (["one.txt", "o*.txt"], [], "o*.txt: all its files belong to sources named before it"),
        (["tiny.txt"], [], "tiny: 4 bytes of text, copies counted once, are too little to hold"),
        (["copies.jsonl"], [], "copies: 4 bytes of text, copies counted once, are too little"),
        (["empty.txt"], [], "empty.txt: empty"),
    ],
)
def test_what_does_not_fit_together_gets_one_sentence(
    tmp_path, monkeypatch, capsys, sources, given, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("Some words.\n" * 50)
    (tmp_path / "tiny.txt").write_text("word")
    (tmp_path / "copies.jsonl").write_text('{"text": "word"}\n' * 50)
    (tmp_path / "empty.txt").write_text("")
    assert run(tmp_path, *given, sources=sources) == 1
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "corpus").rglob("*"))


def test_sources_with_nothing_left_say_why(tmp_path, capsys):
    skipped = write_book(tmp_path / "clean", 16, "Peter", "", kept=False)
    assert run(tmp_path, "--books", skipped) == 1
    assert (
        "corpus source gutenberg: no text is left (pg16: copyrighted: not in the public domain)"
        in capsys.readouterr().err
    )
    assert run(tmp_path, "--fineweb", write_pages(tmp_path / "shard.txt", [])) == 1
    assert "corpus source fineweb: no text is left; loosen its filters" in capsys.readouterr().err


def test_an_emptied_book_and_pages_that_do_not_fit_their_index_are_named(tmp_path, books, capsys):
    Path(books[3]).write_text("")
    assert run(tmp_path, "--books", *books) == 1
    assert "pg4.txt: empty; delete it and clean the book again" in capsys.readouterr().err
    (tmp_path / "foreign.txt").write_text("no extracted pages")
    assert run(tmp_path, "--fineweb", str(tmp_path / "foreign.txt")) == 1
    assert "foreign.index: no such file; extract it first" in capsys.readouterr().err
    shard = Path(write_pages(tmp_path / "shard.txt", ["a page", "another", "a third"]))
    index = index_of(shard).read_bytes()
    for damaged in (index[:-1], index[:-40], index[40:80] + index[:40] + index[80:], b""):
        index_of(shard).write_bytes(damaged)
        assert run(tmp_path, "--fineweb", str(shard)) == 1
        assert (
            "shard.index: not the index of the 20 bytes in shard.txt; "
            "delete both and run the fineweb stage again" in capsys.readouterr().err
        )


@pytest.mark.parametrize("share", [0, 0.9])
def test_a_senseless_share_is_refused(tmp_path, books, capsys, share):
    assert run(tmp_path, "--books", *books, share=share) == 1
    assert "corpus.validation_share" in capsys.readouterr().err


def test_a_failure_leaves_the_older_corpus_and_no_rubbish(tmp_path, books, pages):
    run(tmp_path, "--books", *books)
    before = {
        path: path.read_bytes() for path in (tmp_path / "corpus").rglob("*") if path.is_file()
    }
    (tmp_path / "damaged.txt").write_bytes(b"no index")
    assert (
        run(tmp_path, "--books", *books, "--fineweb", pages[0], str(tmp_path / "damaged.txt")) == 1
    )
    assert {
        path: path.read_bytes() for path in (tmp_path / "corpus").rglob("*") if path.is_file()
    } == before


def test_a_new_corpus_leaves_tokenizers_alone_and_clears_up_after_a_killed_attempt(tmp_path, books):
    run(tmp_path, "--books", *books)
    (tmp_path / "corpus/tokenizer-512").mkdir()
    (tmp_path / "corpus/tokenizer-512/tokenizer.json").write_text("{}")
    left = tmp_path / f"corpus/.train.{socket.gethostname()}.0123abcd.part"
    left.mkdir()
    (left / "gutenberg.txt").write_text("half a co")
    assert run(tmp_path, "--books", *books[:12]) == 0
    assert sorted(path.name for path in (tmp_path / "corpus").iterdir()) == [
        "manifest.json",
        "tokenizer-512",
        "train",
        "validation",
    ]
    assert (tmp_path / "corpus/tokenizer-512/tokenizer.json").exists()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("train/thesis.txt", "corpus/train: holds files and was not made by nanoeuler"),
        ("manifest.json", "corpus/manifest.json: not the manifest of a corpus"),
    ],
)
def test_files_in_the_place_of_a_corpus_are_refused(tmp_path, books, capsys, path, sentence):
    precious = tmp_path / "corpus" / path
    precious.parent.mkdir(parents=True)
    precious.write_text("[]")
    assert run(tmp_path, "--books", *books) == 1
    assert sentence in capsys.readouterr().err
    assert precious.read_text() == "[]"


def test_the_manifest_is_gone_while_files_are_exchanged(tmp_path, books, monkeypatch):
    """A kill between the two renames must not leave a manifest that describes other files."""
    run(tmp_path, "--books", *books)
    real, renamed = folders.replace_folder, []

    def replace(new, path):
        renamed.append(path.name)
        assert not (tmp_path / "corpus/manifest.json").exists()
        real(new, path)

    monkeypatch.setattr(folders, "replace_folder", replace)
    assert run(tmp_path, "--books", *books[:15]) == 0
    assert renamed == ["validation", "train"]
    assert (tmp_path / "corpus/manifest.json").exists()
