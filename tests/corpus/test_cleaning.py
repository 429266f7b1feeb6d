"""Repetitions and quotations are found in whole corpora, dropped and counted."""

import hashlib
import itertools
import json
from pathlib import Path

import pytest
from corpus_samples import manifest_of, read, run, write_book, write_pages

from nanoeuler.corpus import batches
from nanoeuler.corpus.split import position


def words(number: int, count: int) -> list[str]:
    return [f"w{number}x{place}" for place in range(count)]


def edited(text: list[str], changes: int) -> str:
    """Replace words of `text`, each of which is in five of its runs of five words."""
    return " ".join(
        "edit" if place % (len(text) // changes) == 7 else word for place, word in enumerate(text)
    )


@pytest.fixture
def repeating(tmp_path):
    """Write two shards of 100 pages.

    The second has a copy of a page of the first, pages of similarity 0.9 and 0.5 to others, and two
    without words.
    """
    pages = [" ".join(words(number, 200)) for number in range(100)]
    more = [pages[5], edited(words(6, 200), 2), edited(words(7, 200), 13), "… !", "?!"]
    return (
        [
            write_pages(tmp_path / "one.txt", pages[:50]),
            write_pages(tmp_path / "two.txt", [*pages[50:], *more]),
        ],
        pages,
        more,
    )


def test_repetitions_are_dropped_across_shards_and_counted(tmp_path, repeating):
    shards, pages, more = repeating
    assert run(tmp_path, "--fineweb", *shards, deduplicate={"web": "near"}) == 0
    entry = manifest_of(tmp_path)["sources"]["fineweb"]
    left = {
        *read(tmp_path / "corpus", "train", "fineweb"),
        *read(tmp_path / "corpus", "validation", "fineweb"),
    }
    kept_of_pair = {pages[6], more[1]} & left
    assert len(kept_of_pair) == 1  # the held-out one, or else the first
    assert left == {*pages, *more[2:]} - {pages[6]} | kept_of_pair
    assert entry["dropped"]["exact duplicates"]["documents"] == 1
    assert entry["dropped"]["near duplicates"]["documents"] == 1
    run(tmp_path, "--fineweb", *shards, deduplicate={"web": "exact"}, output="exact")
    dropped = manifest_of(tmp_path, "exact")["sources"]["fineweb"]["dropped"]
    assert (dropped["exact duplicates"], dropped["near duplicates"]["documents"]) == (
        {"documents": 1, "bytes": len(pages[5])},
        0,
    )


@pytest.mark.parametrize("mode", ["none", "exact", "near"])
def test_what_is_read_is_kept_held_out_or_dropped(tmp_path, repeating, mode):
    run(tmp_path, "--fineweb", *repeating[0], deduplicate={"web": mode}, decontaminate=True)
    entry = manifest_of(tmp_path)["sources"]["fineweb"]
    dropped = entry["dropped"]
    parts = [
        entry["train"],
        entry["validation"],
        dropped["exact duplicates"],
        dropped["near duplicates"],
        *dropped["contaminated"].values(),
    ]
    for unit in ("documents", "bytes"):
        assert sum(part[unit] for part in parts) == entry["read"][unit]
    assert entry["read"]["documents"] == 105


def test_what_is_held_out_does_not_depend_on_what_is_dropped(tmp_path, repeating):
    for mode, decontaminate in (("none", False), ("exact", True), ("near", True)):
        run(
            tmp_path,
            "--fineweb",
            *repeating[0],
            deduplicate={"web": mode},
            decontaminate=decontaminate,
            output=mode,
        )
    held_out = [
        set(read(tmp_path / mode, "validation", "fineweb")) for mode in ("none", "exact", "near")
    ]
    assert held_out[0] == held_out[1]
    assert held_out[2] <= held_out[0]
    assert len(held_out[0] - held_out[2]) <= 1  # a near-duplicate of another held-out page


@pytest.mark.parametrize("shared", [12, 13])
@pytest.mark.parametrize("of", ["held-out text", "world", "quiz"])
def test_a_page_that_quotes_what_is_measured_on_is_dropped_and_counted(tmp_path, of, shared):
    pages = [" ".join(words(number, 40)) for number in range(100)]
    held_out = min(pages, key=lambda text: position(hashlib.sha256(text.encode()).hexdigest()))
    question = " ".join(words(1000, 30))
    task = " ".join(words(1001, 30))
    (tmp_path / "world.jsonl").write_text(
        json.dumps({"instruction": question, "answer": "yes"}) + "\n"
    )
    (tmp_path / "quiz").mkdir()
    (tmp_path / "quiz" / "manifest.json").write_text("{}")
    (tmp_path / "quiz" / "items.jsonl").write_text(
        json.dumps({"context": task, "choices": ["yes", "no"], "gold": 0}) + "\n"
    )
    quoted = {"held-out text": held_out, "world": question, "quiz": task}[of].split()[
        10 : 10 + shared
    ]
    quoting = "It says: “" + ", ".join(quoted).upper() + "” and no more."
    # its position must be high, so that it is not held out itself
    while position(hashlib.sha256(quoting.encode()).hexdigest()) < 2**62:
        quoting += " Really."
    shard = write_pages(tmp_path / "shard.txt", [*pages, quoting])
    assert (
        run(
            tmp_path,
            "--fineweb",
            shard,
            "--kept-out",
            str(tmp_path / "world.jsonl"),
            str(tmp_path / "quiz" / "manifest.json"),
            decontaminate=True,
        )
        == 0
    )
    manifest = manifest_of(tmp_path)
    counts = {
        test: found["documents"]
        for test, found in manifest["sources"]["fineweb"]["dropped"]["contaminated"].items()
    }
    assert counts == {"held-out text": 0, "world": 0, "quiz": 0} | {of: int(shared == 13)}
    assert (quoting in read(tmp_path / "corpus", "train", "fineweb")) == (shared == 12)
    files = {"world": tmp_path / "world.jsonl", "quiz": tmp_path / "quiz" / "items.jsonl"}
    assert manifest["decontaminate"] == {
        test: hashlib.sha256(path.read_bytes()).hexdigest() for test, path in files.items()
    }


@pytest.mark.parametrize("quoting", [1, 10, 11])
def test_what_more_than_ten_documents_besides_copies_quote_is_kept_and_counted(tmp_path, quoting):
    """The documents are a book and pages of two shards, each with three copies and a near-copy."""
    phrase = " ".join(words(1000, 13))
    (tmp_path / "world.jsonl").write_text(json.dumps({"question": phrase}) + "\n")
    texts = [" ".join(words(number, 100)) for number in range(100)]
    quoted = [" ".join(words(2000 + number, 100)) + f" {phrase}." for number in range(quoting - 1)]
    copies = [text + " More." for text in quoted]
    shards = [
        write_pages(tmp_path / "one.txt", [*texts, *quoted, *quoted]),
        write_pages(tmp_path / "two.txt", [*quoted, *copies]),
    ]
    books = [
        write_book(tmp_path / "clean", number, f"Book {number}", " ".join(words(3000 + number, 50)))
        for number in range(12)
    ]
    books.append(
        write_book(
            tmp_path / "clean", 99, "Quoting", f"It goes: {phrase}. " + " ".join(words(4000, 50))
        )
    )
    options = ("--books", *books, "--fineweb", *shards, "--kept-out", str(tmp_path / "world.jsonl"))
    assert (
        run(tmp_path, *options, deduplicate={"web": "near"}, decontaminate=True, share=0.001) == 0
    )
    manifest = manifest_of(tmp_path)
    entries = manifest["sources"].values()
    learned = [
        text
        for source in manifest["sources"]
        for text in read(tmp_path / "corpus", "train", source)
        if phrase in text
    ]
    held_out = [
        text
        for source in manifest["sources"]
        for text in read(tmp_path / "corpus", "validation", source)
        if phrase in text
    ]
    dropped = sum(entry["dropped"]["contaminated"]["world"]["documents"] for entry in entries)
    spared = sum(entry["kept_quoting_only_frequent_runs"]["documents"] for entry in entries)
    assert not held_out
    assert (dropped, spared, len(learned), manifest["frequent_runs_ignored"]) == (
        (0, 11, 11, 1) if quoting == 11 else (quoting, 0, 0, 0)
    )


def test_a_book_is_dropped_for_a_held_out_page_too_and_a_novel_does_not_quote_its_own_end(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    refrain = " ".join(words(1, 20))
    Path("novel.txt").write_text(f"{refrain}\n\n" * 2_000)
    assert run(tmp_path, sources=["novel.txt"], decontaminate=True) == 0
    pages = write_pages(tmp_path / "shard.txt", [refrain + f" {number}" for number in range(9)])
    assert (
        run(tmp_path, "--fineweb", pages, sources=["novel.txt", "fineweb"], decontaminate=True) == 1
    )
    assert (
        "corpus source novel: no training text is left, as every document has 13 words in a row in "
        "common with what models are measured on "
        "(1 of them); set corpus.decontaminate to false, or add to the source"
    ) in capsys.readouterr().err


def test_the_number_of_threads_changes_nothing(tmp_path, repeating, monkeypatch):
    monkeypatch.setattr(batches, "SIZE", 10_000)
    shards = [
        write_pages(
            tmp_path / f"{number}.txt",
            [" ".join(words(number * 100 + page % 40, 100)) for page in range(50)],
        )
        for number in range(12)
    ]
    for threads in (1, 2, 7):
        assert (
            run(
                tmp_path,
                "--fineweb",
                *repeating[0],
                *shards,
                "--threads",
                str(threads),
                deduplicate={"web": "near"},
                decontaminate=True,
                output=str(threads),
            )
            == 0
        )
    files = {
        path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file()
    }
    # of each split: texts, offsets, numbers of documents and a marker; origins, and the manifest
    assert len(files) == 10
    for file, threads in itertools.product(files, "27"):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / threads / file).read_bytes()
    assert run(tmp_path, "--fineweb", *shards, "--threads", "0", output="none") == 1
