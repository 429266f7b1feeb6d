"""Books, web pages and own text become one corpus with held-out text, and nothing half-written."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from corpus_samples import LICENCES, manifest_of, page_text, read, run, write_book, write_pages

from nanoeuler.corpus import assemble as assembly
from nanoeuler.corpus.split import position, title_key

ROOT = Path(__file__).resolve().parents[2]


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
    assert len(files) == 17
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
