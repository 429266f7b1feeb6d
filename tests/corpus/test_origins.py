"""Every document of a corpus is told where it is from, whatever was held out or dropped."""

import json
import shutil
from pathlib import Path

import duckdb
import pytest
from corpus_samples import manifest_of, read, run, write_book, write_pages

from nanoeuler.corpus.origins import Origins
from nanoeuler.errors import UserError

WEB = {"deduplicate": {"web": "exact"}}


@pytest.fixture
def texts(tmp_path):
    """Three shards of pages, of which every seventh repeats the first; and URLs for two of them,
    in the two forms that there are."""
    shards = [
        ["A page again." if n % 7 == 0 else f"Page {shard}-{n} of the web. " * 3 for n in range(30)]
        for shard in range(3)
    ]
    paths = [write_pages(tmp_path / f"web/{n}.txt", pages) for n, pages in enumerate(shards)]
    rows = [{"id": f"0-{n}", "url": f"https://example.org/0/{n}"} for n in range(30)]
    (tmp_path / "web/0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    duckdb.sql(
        "copy (select '1-' || i as id, 'https://example.org/1/' || i as url from range(30) r(i)) "
        f"to '{tmp_path}/web/1.parquet' (format parquet)"
    )
    return shards, paths


@pytest.mark.parametrize("grouping", [[], ["--group-files", "1"]])
def test_a_page_has_its_url_or_the_number_in_its_file(tmp_path, texts, grouping):
    shards, paths = texts
    assert run(tmp_path, "--fineweb", *paths, *grouping, **WEB) == 0
    origins = Origins(tmp_path / "corpus/manifest.json")
    everything = [page for shard in shards for page in shard]
    seen = set()
    for split in ("train", "validation"):
        entry = manifest_of(tmp_path)["sources"]["fineweb"][split]
        stems = [Path(text["text"]).stem for text in entry.get("groups", [entry])]
        pages = [page for stem in stems for page in read(tmp_path / "corpus", split, stem)]
        for document, page in enumerate(pages):
            found = origins.of(split, "fineweb", document)
            assert everything[found.number] == page
            shard, part = divmod(found.number, 30)
            assert found.part == part
            urls = [f"https://example.org/{shard}/{part}"] * 2 + [str(tmp_path / "web/2.txt")]
            assert found.address == urls[shard]
            assert found.licence == "ODC-By 1.0"
            seen.add(found.number)
            if split == "train" and shard < 2:
                assert origins.called(found.address) == [(found, [document])]
                assert origins.called(f"fineweb:{found.number}") == [(found, [document])]
    assert len(seen) == 90 - 14  # fifteen are one text


def test_a_book_has_title_and_author_and_two_editions_have_the_same(tmp_path):
    books = [write_book(tmp_path / "clean", n, f"Book {n % 19}", f"Text {n}.") for n in range(20)]
    assert run(tmp_path, "--books", *books) == 0
    origins = Origins(tmp_path / "corpus/manifest.json")
    for document, text in enumerate(read(tmp_path / "corpus", "train", "gutenberg")):
        found = origins.of("train", "gutenberg", document)
        number = int(text.removeprefix("Text ").removesuffix("."))
        assert (found.number, found.title) == (number, f"Book {number % 19}")
        assert found.address == str(tmp_path / f"clean/pg{number}.txt")
        assert (found, [document]) in origins.called(f"pg{number}")
    assert [found.number for found, _ in origins.called("Book 0")] == [0, 19]


def test_stretches_of_one_novel_are_all_told_as_that_file(tmp_path):
    novel = tmp_path / "novel.txt"
    novel.write_text("\n\n".join(f"Paragraph {n} of it. " * 20 for n in range(60)))
    assert run(tmp_path, "--own", str(novel), sources=[str(novel)]) == 0
    origins = Origins(tmp_path / "corpus/manifest.json")
    (source,) = origins.manifest["sources"]
    pieces = len(read(tmp_path / "corpus", "train", source))
    assert pieces > 1
    ((found, documents),) = origins.called("novel.txt")
    assert found.address == str(novel)
    assert documents == list(range(pieces))
    assert origins.of("validation", source, 0) == found


def test_a_corpus_without_origins_and_damaged_numbers_are_one_sentence(tmp_path):
    books = [write_book(tmp_path / "clean", n, f"Book {n}", f"Text {n}.") for n in range(20)]
    assert run(tmp_path, "--books", *books) == 0
    shutil.copytree(tmp_path / "corpus", tmp_path / "damaged")
    (numbers,) = (tmp_path / "damaged/train").glob("*.numbers")
    numbers.write_bytes(b"\1" + numbers.read_bytes()[1:])
    with pytest.raises(UserError, match=r"gutenberg\.numbers: its bytes are not those"):
        Origins(tmp_path / "damaged/manifest.json").of("train", "gutenberg", 0)
    manifest = manifest_of(tmp_path)
    del manifest["sources"]["gutenberg"]["train"]["origins"]
    (tmp_path / "corpus/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="does not say where its documents are from"):
        Origins(tmp_path / "corpus/manifest.json").of("train", "gutenberg", 0)
