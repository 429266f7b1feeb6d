"""One's own text in a corpus: what of it is held out, and where it stands among other sources."""

import itertools
import json

import pytest
from corpus_samples import manifest_of, read, run, write_book

from nanoeuler.cli import main
from nanoeuler.corpus import own_text


def test_a_single_novel_is_cut_at_a_paragraph_near_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    novel = "".join(f"Paragraph {n} of the novel, which goes on.\n\n" for n in range(1000))
    (tmp_path / "My Novel.txt").write_text(novel)
    assert run(tmp_path, sources=["My Novel.txt"]) == 0
    (train,), (validation,) = (
        read(tmp_path / "corpus", "train", "my-novel"),
        read(tmp_path / "corpus", "validation", "my-novel"),
    )
    assert train + validation == novel
    assert validation.startswith("Paragraph 90")
    entry = manifest_of(tmp_path)["sources"]["my-novel"]
    assert (entry["split"], entry["licence"]) == ("ends of documents", "own text")


def test_a_file_in_pieces_is_cut_at_the_end_of_each(tmp_path, monkeypatch):
    monkeypatch.setattr(own_text, "PIECE", 100_000)
    novel = "".join(f"Paragraph {n} of the saga, which goes on.\n\n" for n in range(10_000))
    (tmp_path / "saga.txt").write_text(novel)
    config = json.dumps({"corpus": {"decontaminate": False}})
    assert (
        main(
            [
                "assemble",
                "--config",
                config,
                "--own",
                str(tmp_path / "saga.txt"),
                "--output",
                str(tmp_path / "corpus"),
            ]
        )
        == 0
    )
    (name,) = manifest_of(tmp_path)["sources"]
    train, validation = (
        read(tmp_path / "corpus", "train", name),
        read(tmp_path / "corpus", "validation", name),
    )
    assert len(train) == len(validation) > 3
    assert "".join(itertools.chain(*zip(train, validation, strict=True))) == novel
    assert sum(map(len, validation)) < 0.06 * len(novel)


def paragraphs(word: str, count: int) -> str:
    return "".join(f"The {word} came to the quay on day {n}.\n\n" for n in range(count))


def test_of_a_few_own_files_the_ends_are_held_out_up_to_the_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    texts = {name: paragraphs(name, 20_000) for name in ("a", "b", "c")} | {"d": "Ok."}
    for name, text in texts.items():
        (tmp_path / f"texts/{name}.txt").write_text(text)
    assert run(tmp_path, sources=["texts"], share=0.01) == 0
    train, validation = (
        read(tmp_path / "corpus", split, "texts") for split in ("train", "validation")
    )
    assert [a + b for a, b in zip(train, validation, strict=False)] == list(texts.values())[:3]
    assert train[3] == "Ok."  # too short to hold out a part of it
    assert len(validation) == 3
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


def test_books_must_not_quote_the_held_out_end_of_one_s_own_text(tmp_path, monkeypatch, books):
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


def test_two_editions_of_one_title_alone_both_lose_their_end(tmp_path):
    books = [
        write_book(tmp_path / "clean", n, "Emma", "A paragraph of it.\n\n" * 100 * n)
        for n in (1, 2)
    ]
    run(tmp_path, "--books", *books)
    assert [
        len(read(tmp_path / "corpus", split, "gutenberg")) for split in ("train", "validation")
    ] == [2, 2]


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
    parts = [read(tmp_path / "corpus", split, "texts") for split in ("train", "validation")]
    assert ["".join(text) for text in zip(*parts, strict=True)] == [
        f"{name} has a line of words\n" * 30 for name in ("texts/a.md", "texts/b.txt")
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
