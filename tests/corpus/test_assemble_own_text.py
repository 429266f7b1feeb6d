"""One's own text in a corpus: what of it is held out, and where it stands among other sources."""

import json
import random
import unicodedata

import numpy as np
import pytest
from corpus_samples import alternating, manifest_of, read, run, write_book

from nanoeuler.cli import main
from nanoeuler.corpus import text_files
from nanoeuler.tokenizer.shards import TokenStore


def test_of_a_single_novel_several_stretches_of_paragraphs_are_held_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    novel = "".join(f"Paragraph {n} of the novel, which goes on.\n\n" for n in range(1000))
    (tmp_path / "My Novel.txt").write_text(novel)
    assert run(tmp_path, sources=["My Novel.txt"]) == 0
    train, validation = (
        read(tmp_path / "corpus", split, "my-novel") for split in ("train", "validation")
    )
    assert len(validation) == 4
    assert all(piece.startswith("Paragraph ") for piece in train + validation)
    assert alternating(train, validation) == novel
    assert sum(map(len, validation)) == pytest.approx(0.1 * len(novel), rel=0.1)
    quarters = [int(piece.split()[1]) // 250 for piece in validation]
    assert quarters == [0, 1, 2, 3]
    entry = manifest_of(tmp_path)["sources"]["my-novel"]
    assert (entry["split"], entry["licence"]) == ("stretches of documents", "own text")


def test_of_each_piece_of_a_file_in_pieces_stretches_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PIECE", 100_000)
    novel = "".join(f"Paragraph {n} of the saga, which goes on.\n\n" for n in range(10_000))
    (tmp_path / "saga.txt").write_text(novel)
    assert run(tmp_path, "--own", str(tmp_path / "saga.txt"), share=0.05) == 0
    (name,) = manifest_of(tmp_path)["sources"]
    train, validation = (
        read(tmp_path / "corpus", split, name) for split in ("train", "validation")
    )
    numbers = [int(word) for word in "".join(validation).split() if word.isdigit()]
    assert numbers == sorted(numbers)
    assert len(set(np.array(numbers) // 1000)) == 10  # there is some of each tenth
    assert sorted("".join(train + validation).split("\n\n")) == sorted(novel.split("\n\n"))
    assert sum(map(len, validation)) == pytest.approx(0.05 * len(novel), rel=0.1)


def paragraphs(word: str, count: int) -> str:
    return "".join(f"The {word} came to the quay on day {n}.\n\n" for n in range(count))


def test_of_a_few_own_files_stretches_are_held_out_up_to_the_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    texts = {name: paragraphs(name, 20_000) for name in ("a", "b", "c")} | {"d": "Ok."}
    for name, text in texts.items():
        (tmp_path / f"texts/{name}.txt").write_text(text)
    assert run(tmp_path, sources=["texts"], share=0.01) == 0
    train, validation = (
        read(tmp_path / "corpus", split, "texts") for split in ("train", "validation")
    )
    assert train.pop() == "Ok."  # too short to hold out a part of it
    for name in ("a", "b", "c"):
        pieces = [
            [piece for piece in split if f"The {name} came" in piece]
            for split in (train, validation)
        ]
        assert len(pieces[1]) == 7  # of 1 kB at least
        assert alternating(*pieces) == texts[name]
    assert sum(map(len, validation)) == pytest.approx(0.01 * sum(map(len, train)), rel=0.05)


def test_of_many_short_own_files_whole_ones_are_held_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for n in range(60):
        (tmp_path / f"notes/{n}.md").write_text(f"Note {n} has words.\n" * 20)
    assert run(tmp_path, sources=["notes"], share=0.01) == 0
    assert [
        len(read(tmp_path / "corpus", split, "notes")) for split in ("train", "validation")
    ] == [58, 2]


def test_one_s_own_text_may_repeat_itself_but_not_quote_an_evaluation_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    greeting = "I remain, as ever and with my love to all of you at the quay, yours, Bea."
    for n in range(40):
        (tmp_path / f"letters/{n}.txt").write_text(paragraphs(f"ship {n}", 20) + greeting)
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"question": paragraphs("whale", 2)}) + "\n")
    (tmp_path / "letters/40.txt").write_text(paragraphs("whale", 20))
    for sources in (["letters"], [f"letters/{n}.txt" for n in range(9)] + ["letters/[34]*.txt"]):
        assert (
            run(tmp_path, "--kept-out", "quiz.jsonl", sources=sources, decontaminate=True) == 0
        ), sources
        dropped = [
            entry["dropped"]["contaminated"] for entry in manifest_of(tmp_path)["sources"].values()
        ]
        assert sum(set_["held-out text"]["documents"] for set_ in dropped) == 0
        assert sum(set_["quiz"]["documents"] for set_ in dropped) == 1


def test_books_must_not_quote_held_out_stretches_of_one_s_own_text(tmp_path, monkeypatch, books):
    monkeypatch.chdir(tmp_path)
    novel = paragraphs("ferry", 1000)
    (tmp_path / "novel.txt").write_text(novel)
    copy = write_book(tmp_path / "clean", 99, "Copy", novel)
    found = run(
        tmp_path, "--books", *books, copy, sources=["novel.txt", "gutenberg"], decontaminate=True
    )
    assert found == 0
    dropped = manifest_of(tmp_path)["sources"]["gutenberg"]["dropped"]["contaminated"]
    assert dropped["held-out text"]["bytes"] >= len(novel)


def test_two_editions_of_one_title_alone_mostly_hold_out_the_same_passages(tmp_path):
    first = [f"Paragraph {n} of it, which every edition has." for n in range(2000)]
    second = [paragraph.upper() if n % 40 == 7 else paragraph for n, paragraph in enumerate(first)]
    second[1500:1500] = [f"A new paragraph {n}." for n in range(30)]
    books = [
        write_book(tmp_path / "clean", n, "Emma", "\n\n".join(edition))
        for n, edition in enumerate((["PREFACE"] * 9 + first, second))
    ]
    assert run(tmp_path, "--books", *books) == 0
    train, validation = (
        {
            paragraph
            for piece in read(tmp_path / "corpus", split, "gutenberg")
            for paragraph in piece.split("\n\n")
        }
        for split in ("train", "validation")
    )
    held_out = validation & set(first)
    assert len(held_out) > 150
    assert len(held_out & train) < 0.4 * len(held_out)  # 0.9 if drawn for each by itself


def test_own_text_stands_where_the_configuration_names_it(tmp_path, monkeypatch, books):
    monkeypatch.chdir(tmp_path)
    for name in ("texts/a.md", "texts/b.txt", "diary.txt", "more/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} has a line of words\n" * 30)
    assert (
        run(tmp_path, "--books", *books, sources=["diary.txt", "gutenberg", "texts/", "more/*.txt"])
        == 0
    )
    assert list(manifest_of(tmp_path)["sources"]) == ["diary", "gutenberg", "texts", "more"]
    lines = "".join(
        piece
        for split in ("train", "validation")
        for piece in read(tmp_path / "corpus", split, "texts")
    ).splitlines()
    assert sorted(lines) == [
        f"{name} has a line of words" for name in ("texts/a.md", "texts/b.txt") for _ in range(30)
    ]


def test_files_that_the_configuration_s_folder_holds_may_be_given_one_by_one(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for name in "abc":
        (tmp_path / f"texts/{name}.txt").write_text(f"{name} has words.\n" * 30)
    (tmp_path / "other.txt").write_text("other words.\n" * 30)
    assert (
        run(
            tmp_path,
            "--own",
            "texts/a.txt",
            "texts/b.txt",
            "texts/c.txt",
            "other.txt",
            sources=["texts"],
        )
        == 0
    )
    assert list(manifest_of(tmp_path)["sources"]) == ["texts"]
    assert [line for line in capsys.readouterr().err.splitlines() if "left out" in line] == [
        "text  other.txt was left out: corpus.sources names other files; add it there"
    ]


def test_own_text_given_by_hand_comes_behind_what_is_named(tmp_path, monkeypatch, books):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text("It has words.\n" * 30)
    assert run(tmp_path, "--books", *books, "--own", "novel.txt", sources=["gutenberg"]) == 0
    assert list(manifest_of(tmp_path)["sources"]) == ["gutenberg", "novel"]


def test_paths_with_one_slug_get_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a b.txt", "a-b.txt", "gutenberg.md"):
        (tmp_path / name).write_text(f"{name} has words.\n" * 30)
    assert run(tmp_path, sources=["a b.txt", "a-b.txt", "gutenberg.md"]) == 0
    assert list(manifest_of(tmp_path)["sources"]) == ["a-b", "a-b-2", "gutenberg-2"]


CHINESE = "他走到河边，看见第{n}只船。船上的人说：“今天不去了！”于是他回家读书"
THAI = "เธอเดินไปที่ท่าเรือและเห็นเรือลำที่{n}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chinese", "".join(CHINESE.format(n=n) + "。" for n in range(30_000))),
        ("thai", "".join(THAI.format(n=n) for n in range(30_000))),
        ("dna", "".join(random.Random(1).choices("ACGT", k=3_000_000))),
        ("numbers", ",".join(map(str, range(300_000)))),
        ("marks", "e\u0301\u0323" * 300_000),
    ],
)
def test_text_without_spaces_and_line_ends_is_held_out_at_sentences_or_characters(
    tmp_path, monkeypatch, name, text
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.txt").write_text(text)
    assert run(tmp_path, sources=[f"{name}.txt"], share=0.02) == 0
    train, validation = (
        read(tmp_path / "corpus", split, name) for split in ("train", "validation")
    )
    assert alternating(train, validation) == text
    assert len(validation) == 16
    assert sum(map(len, validation)) == pytest.approx(0.02 * len(text), rel=0.05)
    for piece in validation + train[1:]:
        assert not unicodedata.combining(piece[0])
        if name == "chinese":
            assert piece.startswith(("他走到", "船上的", "于是"))


@pytest.mark.parametrize("note", ["Ahoy", "Bye.\n", "1", "Hm?\n\n"])
def test_a_tiny_note_beside_a_novel_is_not_all_that_is_held_out(tmp_path, monkeypatch, note):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    novel = paragraphs("ferry", 1000)
    (tmp_path / "texts/novel.txt").write_text(novel)
    (tmp_path / "texts/note.txt").write_text(note)
    assert run(tmp_path, sources=["texts"], share=0.05) == 0
    train, validation = (
        read(tmp_path / "corpus", split, "texts") for split in ("train", "validation")
    )
    assert train.pop(0) == note
    assert alternating(train, validation) == novel


def test_a_file_too_small_to_hold_out_some_of_it_is_trained_on_beside_others(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text(paragraphs("ferry", 1000))
    (tmp_path / "tiny.txt").write_text("Ahoy\n")
    assert run(tmp_path, sources=["novel.txt", "tiny.txt"], decontaminate=True) == 0
    assert read(tmp_path / "corpus", "train", "tiny") == ["Ahoy\n"]
    assert read(tmp_path / "corpus", "validation", "tiny") == []
    assert len(read(tmp_path / "corpus", "validation", "novel")) == 3
    assert (
        "corpus source tiny: 5 bytes are too little to hold some out; all is trained on"
        in capsys.readouterr().err
    )
    settings = json.dumps({"tokenizer": {"vocab_size": 300, "sample_bytes": 100_000}})
    corpus = ["--config", settings, "--corpus", "corpus/manifest.json"]
    assert main(["bpe", *corpus, "--output", "tokenizer.json"]) == 0
    tokenizer = ["--tokenizer", "tokenizer.json", "--output", "tokens"]
    assert main(["tokenize", *corpus, *tokenizer]) == 0
    store = TokenStore.open(tmp_path / "tokens/manifest.json")
    assert list(store.sources("train")) == ["novel", "tiny"]
    assert list(store.sources("validation")) == ["novel"]
