"""Books, web pages and own text become one corpus with held-out text, and nothing half-written."""

import hashlib
import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from corpus_samples import LICENCES, manifest_of, page_text, read, run, write_book, write_pages

from nanoeuler import folders
from nanoeuler.cli import main
from nanoeuler.corpus import assemble as assembly
from nanoeuler.corpus import own_text
from nanoeuler.corpus.extracted_pages import index_of
from nanoeuler.corpus.split import position, title_key

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def books(tmp_path):
    return [
        write_book(
            tmp_path / "clean",
            n,
            f"Book {n}",
            f"Bøok {n} begins.\n\n" + "It goes on. " * (20 + n) + "\n",
        )
        for n in range(1, 21)
    ]


@pytest.fixture
def pages(tmp_path):
    texts = [[page_text(shard, number) for number in range(150)] for shard in range(2)]
    return [
        write_pages(tmp_path / f"web/shard-{shard:03d}.txt", texts[shard]) for shard in range(2)
    ]


def test_every_document_is_on_one_side_unchanged_and_in_order(tmp_path, books, pages):
    assert (
        run(tmp_path, "--books", *books, "--fineweb", *pages, sources=["gutenberg", "fineweb"]) == 0
    )
    for source, expected in {
        "gutenberg": [Path(book).read_text() for book in books],
        "fineweb": [page_text(shard, number) for shard in range(2) for number in range(150)],
    }.items():
        train, validation = (
            read(tmp_path / "corpus", "train", source),
            read(tmp_path / "corpus", "validation", source),
        )
        assert [text for text in expected if text in set(validation)] == validation
        assert [text for text in expected if text not in set(validation)] == train
        assert len(train) + len(validation) == len(expected)
        assert len(validation) >= 2
        assert sum(map(len, validation)) < 0.11 * sum(map(len, expected))


def test_the_manifest_counts_and_hashes_what_is_there(tmp_path, books, pages):
    run(tmp_path, "--books", *books, "--fineweb", *pages, sources=["fineweb", "gutenberg"])
    manifest = manifest_of(tmp_path)
    assert (manifest["version"], manifest["name"], list(manifest["sources"])) == (
        1,
        "demo",
        ["fineweb", "gutenberg"],
    )
    for source, entry in manifest["sources"].items():
        assert entry["licence"] == LICENCES[source]["licence"]
        for split in ("train", "validation"):
            part = entry[split]
            raw = (tmp_path / "corpus" / part["text"]).read_bytes()
            assert part["text"] == f"{split}/{source}.txt"
            assert part["offsets"] == f"{split}/{source}.offsets"
            assert (part["bytes"], part["sha256"]) == (len(raw), hashlib.sha256(raw).hexdigest())
            assert part["documents"] == len(read(tmp_path / "corpus", split, source))
            assert (
                part["offsets_sha256"]
                == hashlib.sha256((tmp_path / "corpus" / part["offsets"]).read_bytes()).hexdigest()
            )
    assert manifest["bytes"]["train"] == sum(
        entry["train"]["bytes"] for entry in manifest["sources"].values()
    )
    assert manifest["documents"]["validation"] == sum(
        entry["validation"]["documents"] for entry in manifest["sources"].values()
    )
    assert manifest["fingerprint"] == assembly.fingerprint(manifest["sources"])


def test_the_same_input_gives_the_same_bytes_and_other_input_another_fingerprint(
    tmp_path, books, pages
):
    arguments = ["--books", *books, "--fineweb", *pages]
    run(tmp_path, *arguments, output="one")
    run(tmp_path, *arguments, output="two")
    files = {
        path.relative_to(tmp_path / "one")
        for path in (tmp_path / "one").rglob("*")
        if path.is_file()
    }
    assert len(files) == 11
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    run(tmp_path, *arguments, sources=["fineweb", "gutenberg"], output="order")
    run(tmp_path, *arguments, share=0.3, output="share")
    run(tmp_path, "--books", *books[1:], "--fineweb", *pages, output="fewer")
    assert (
        len(
            {
                manifest_of(tmp_path, folder)["fingerprint"]
                for folder in ("one", "two", "order", "share", "fewer")
            }
        )
        == 4
    )


def test_borders_of_documents_are_part_of_the_fingerprint():
    def entries(borders):
        part = {"sha256": "same", "offsets_sha256": borders}
        return {"own": {"train": part, "validation": part}}

    assert assembly.fingerprint(entries("a")) != assembly.fingerprint(entries("b"))


def test_editions_of_a_title_are_on_one_side(tmp_path):
    titles = [f"Title {n}" for n in range(12)]
    lowest = min(titles, key=lambda title: position(title_key(title)))
    editions = [f"{lowest}; Or, A Tale", f"The {lowest}, Complete", lowest.upper()]
    books = [
        write_book(tmp_path / "clean", n, title, f"{title} has its words.\n")
        for n, title in enumerate([*titles, *editions])
    ]
    run(tmp_path, "--books", *books, sources=["gutenberg"])
    validation = read(tmp_path / "corpus", "validation", "gutenberg")
    assert [text for text in validation if lowest.casefold() in text.casefold()] == [
        f"{title} has its words.\n" for title in [lowest, *editions]
    ]
    assert not any(
        lowest.casefold() + " " in text.casefold()
        for text in read(tmp_path / "corpus", "train", "gutenberg")
    )


def test_copies_of_a_page_in_two_shards_are_on_one_side(tmp_path):
    texts = [f"Page {n}. " * 5 for n in range(100)]
    pages = [write_pages(tmp_path / f"shard-{n}.txt", texts) for n in range(2)]
    run(tmp_path, "--fineweb", *pages, sources=["fineweb"])
    assert not set(read(tmp_path / "corpus", "train", "fineweb")) & set(
        read(tmp_path / "corpus", "validation", "fineweb")
    )


def test_skipped_books_are_left_out_and_said(tmp_path, books):
    skipped = write_book(tmp_path / "clean", 99, "Peter", "", kept=False)
    pages = write_pages(tmp_path / "shard.txt", ["First page.", "Second page.", "Third."])
    assert run(tmp_path, "--books", *books, skipped, "--fineweb", pages) == 0
    manifest = manifest_of(tmp_path)["sources"]
    assert manifest["gutenberg"]["left_out"] == {"pg99": "copyrighted: not in the public domain"}
    assert (
        manifest["gutenberg"]["train"]["documents"]
        + manifest["gutenberg"]["validation"]["documents"]
        == 20
    )
    assert (
        manifest["fineweb"]["train"]["documents"] + manifest["fineweb"]["validation"]["documents"]
        == 3
    )


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


@pytest.mark.parametrize(
    ("sources", "given", "message"),
    [
        (
            [],
            [],
            "no text to build a corpus of; name gutenberg, fineweb or a path of your own in "
            "corpus.sources",
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
        (["tiny.txt"], [], "corpus source tiny: 4 bytes are too little text to hold some out"),
        (["empty.txt"], [], "empty.txt: empty"),
    ],
)
def test_what_does_not_fit_together_gets_one_sentence(
    tmp_path, monkeypatch, capsys, sources, given, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("Some words.\n" * 50)
    (tmp_path / "tiny.txt").write_text("word")
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


def test_one_document_of_50_megabytes(tmp_path):
    text = " ".join(f"word{number}" for number in range(4_400_000))
    assert len(text) > 50_000_000
    pages = write_pages(
        tmp_path / "shard.txt", [*(f"{page} is a short page" for page in range(100)), text]
    )
    assert (
        run(
            tmp_path,
            "--fineweb",
            pages,
            deduplicate={"web": "near"},
            decontaminate=True,
            share=0.01,
        )
        == 0
    )
    assert text in read(tmp_path / "corpus", "train", "fineweb")


def test_a_million_tiny_pages(tmp_path):
    path = write_pages(
        tmp_path / "tiny.txt", [f"page {number % 900_000}" for number in range(1_000_000)]
    )
    assert (
        run(
            tmp_path, "--fineweb", path, deduplicate={"web": "near"}, decontaminate=True, share=0.01
        )
        == 0
    )
    entry = manifest_of(tmp_path)["sources"]["fineweb"]
    assert entry["dropped"]["exact duplicates"]["documents"] == 100_000
    assert entry["train"]["documents"] + entry["validation"]["documents"] == 900_000


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


def test_a_corpus_of_an_older_version_which_left_no_marker_is_replaced(tmp_path, books):
    run(tmp_path, "--books", *books)
    for split in ("train", "validation"):
        (tmp_path / "corpus" / split / folders.MARKER).unlink()
    assert run(tmp_path, "--books", *books[:12]) == 0


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


def test_a_corpus_is_never_held_in_memory(tmp_path):
    """Compares a child process with 96 MB of pages and own text to one with a few lines of each."""
    line = "A line of words that fills the page, and it has an end."
    (tmp_path / "own.txt").write_text(f"{line}\n\n" * (48_000_000 // (len(line) + 2)))
    (tmp_path / "small.txt").write_text(f"{line}\n\n" * 100)
    for name, documents in (("pages", 24_000), ("few", 100)):
        write_pages(
            tmp_path / f"{name}.txt", [f"{line} {number}" * 33 for number in range(documents)]
        )
    unit = 1024 if sys.platform == "linux" else 1
    code = (
        "import resource, sys; from nanoeuler.cli import main; main(sys.argv[1:]); "
        f"print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * {unit})"
    )

    def peak_memory(own, pages):
        config = json.dumps(
            {
                "corpus": {
                    "name": own,
                    "sources": ["fineweb", str(tmp_path / own)],
                    "decontaminate": False,
                }
            }
        )
        arguments = [
            "assemble",
            "--config",
            config,
            "--fineweb",
            str(tmp_path / pages),
            "--output",
            str(tmp_path / Path(own).stem),
        ]
        return int(
            subprocess.run(
                [sys.executable, "-c", code, *arguments],
                capture_output=True,
                text=True,
                check=True,
                cwd=ROOT,
            ).stdout
        )

    grown = peak_memory("own.txt", "pages.txt") - peak_memory("small.txt", "few.txt")
    assert sum(manifest_of(tmp_path, "own")["bytes"].values()) > 95_000_000
    assert grown < 120_000_000, grown


REAL = ROOT / "../shared/data/web"


def test_real_web_pages(tmp_path):
    if not REAL.is_dir():
        pytest.skip(
            "no ../shared/data/web here: the real parquet files are not part of the repository"
        )
    texts = [
        text
        for (text,) in duckdb.sql(f"select text from '{min(REAL.glob('*.parquet'))}'").fetchall()
    ]
    pages = write_pages(tmp_path / "real.txt", texts)
    assert run(tmp_path, "--fineweb", pages, sources=["fineweb"], share=0.01) == 0
    entry = manifest_of(tmp_path)["sources"]["fineweb"]
    documents, size = len(texts), sum(len(text.encode()) for text in texts)
    assert entry["train"]["documents"] + entry["validation"]["documents"] == documents
    assert entry["train"]["bytes"] + entry["validation"]["bytes"] == size
    assert entry["validation"]["bytes"] == pytest.approx(0.01 * size, rel=0.2)
    assert not set(read(tmp_path / "corpus", "train", "fineweb")) & set(
        read(tmp_path / "corpus", "validation", "fineweb")
    )
