"""Documents of other tools come from JSON lines and Parquet, plain or packed, into a corpus."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from corpus_samples import manifest_of, read
from corpus_samples import run as assemble
from record_samples import lines, read_lines

from nanoeuler.cli import main
from nanoeuler.corpus.extracted_pages import read_index
from nanoeuler.corpus.packed_files import find_zstd

DOCUMENTS = [
    {
        "id": f"doc-{number}",
        "text": f"Ferry {number} sails — “late” — to {'quays ' * (number % 9)}and home.\n",
        "url": f"https://example.org/{number}",
        "language": "de" if number % 10 == 9 else "en",
        "score": number / 100,
        "added": {"tool": "curator"},
    }
    for number in range(100)
]


def write_parquet(path: Path, records: list) -> None:
    source = path.with_suffix(".source.jsonl")
    source.write_bytes(lines(*records))
    with duckdb.connect() as connection:
        connection.execute(
            f"copy (select * from read_json('{source}')) to '{path}' "
            "(format parquet, row_group_size 2048)"
        )
    source.unlink()


WRITERS: dict[str, Callable[[Path, list], object]] = {
    "plain.jsonl": lambda path, records: path.write_bytes(lines(*records)),
    "packed.jsonl.gz": lambda path, records: path.write_bytes(gzip.compress(lines(*records))),
    "packed.jsonl.zst": lambda path, records: path.write_bytes(
        find_zstd().compress(lines(*records))
    ),
    "list.json": lambda path, records: path.write_text(json.dumps(records)),
    "columns.parquet": write_parquet,
}


def extract(folder: Path, *urls: object, file: int = 0, **settings: object) -> int:
    files = [{"url": str(url)} for url in urls]
    config = {
        "corpus": {"documents": settings},
        "sources": {"documents": {"collection": "web", "licence": "CC0", "files": files}},
    }
    output = ["--output", str(folder / "file.txt"), "--record", str(folder / "file.json")]
    arguments = ["--config", json.dumps(config), "--file", str(file), *output]
    return main(["documents", *arguments])


def extracted(folder: Path) -> tuple[list[str], list[dict], dict]:
    """The texts, the origins and the record."""
    ends = read_index(folder / "file.txt", "documents")["end"].tolist()
    raw = (folder / "file.txt").read_bytes()
    texts = [raw[start:end].decode() for start, end in itertools.pairwise([0, *ends])]
    origins = read_lines(folder / "file.jsonl")
    return texts, origins, json.loads((folder / "file.json").read_text())


@pytest.fixture
def made(tmp_path) -> Path:
    return tmp_path / "made"


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path, made, name):
    WRITERS[name](tmp_path / name, DOCUMENTS)
    assert extract(made, tmp_path / name) == 0
    texts, origins, record = extracted(made)
    assert texts == [document["text"] for document in DOCUMENTS]
    assert origins == [{"id": each["id"], "url": each["url"]} for each in DOCUMENTS]
    assert (record["read"], record["kept"], record["bad"]) == (100, 100, {})
    assert record["licence"] == "CC0"
    assert sorted(path.name for path in made.iterdir()) == [
        *("file.index", "file.json", "file.jsonl", "file.txt")
    ]


def test_language_and_score_choose_and_what_lacks_them_is_dropped(tmp_path, made):
    bare = {"id": "bare", "text": "Nobody has scored this."}
    WRITERS["plain.jsonl"](tmp_path / "a.jsonl", [*DOCUMENTS, bare])
    assert extract(made, tmp_path / "a.jsonl", language="en", min_score=0.5) == 0
    texts, _, record = extracted(made)
    chosen = [each for each in DOCUMENTS if each["language"] == "en" and each["score"] >= 0.5]
    assert texts == [document["text"] for document in chosen]
    assert record["dropped"] == {"language": 11, "score": 45}
    assert record["filters"] == {"language": "en", "min_score": 0.5}


def test_id_and_url_may_be_missing(tmp_path, made):
    WRITERS["plain.jsonl"](tmp_path / "a.jsonl", [{"text": "One."}, {"text": "Two.", "id": 7}])
    assert extract(made, tmp_path / "a.jsonl") == 0
    assert extracted(made)[1] == [{"id": "0:1", "url": ""}, {"id": 7, "url": ""}]


def test_bad_records_are_left_out_and_counted(tmp_path, made, capsys):
    bad = [{"id": "a"}, {"text": ["list"]}, {"text": " \n"}, {"text": "\ud800"}, 5]
    WRITERS["plain.jsonl"](tmp_path / "a.jsonl", [*DOCUMENTS, *bad])
    assert extract(made, tmp_path / "a.jsonl") == 0
    texts, _, record = extracted(made)
    assert len(texts) == 100
    assert record["bad"] == {
        "no text": 1,
        "text is not text": 1,
        "text is empty": 1,
        "text is not Unicode": 1,
        "no JSON object": 1,
    }
    assert "5 of 105 records are left out (line 101: no text;" in capsys.readouterr().err


REFUSED = {
    "no text in most records": (
        lines(*[{"body": "text"}] * 3, *DOCUMENTS[:2]),
        "3 of 5 records are bad (line 1: no text; line 2: no text; line 3: no text); give records "
        "with an object with a `text`",
    ),
    "a book": (b"It was a dark night.", "neither a JSON list nor lines of JSON objects"),
    "nothing": (b"", "neither a JSON list nor lines of JSON objects"),
    "half of a gzip file": (gzip.compress(lines(*DOCUMENTS))[:-99], "damaged gzip"),
    "half of a zst file": (find_zstd().compress(lines(*DOCUMENTS))[:-99], "damaged Zstandard"),
    "half of a parquet file": (b"PAR1" + bytes(99), "damaged parquet"),
    "another encoding": ('{"text": "Käse"}\n'.encode("latin-1"), "not UTF-8 text (line 1)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_and_leaves_nothing(tmp_path, made, capsys, case):
    content, sentence = REFUSED[case]
    (tmp_path / "a.jsonl").write_bytes(content)
    assert extract(made, tmp_path / "a.jsonl") == 1
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert list(made.iterdir()) == []


def test_filters_that_nothing_passes_are_named(tmp_path, made, capsys):
    WRITERS["plain.jsonl"](tmp_path / "a.jsonl", DOCUMENTS)
    assert extract(made, tmp_path / "a.jsonl", language="fr") == 1
    told = "no document passes the filters, which drop: language 100; loosen corpus.documents"
    assert told in capsys.readouterr().err


def test_a_number_beyond_the_list_is_refused(tmp_path, made, capsys):
    assert extract(made, tmp_path / "a.jsonl", file=1) == 1
    assert "--file 1: the sources file lists 1 file, counted from 0" in capsys.readouterr().err


def test_rows_of_a_parquet_file_that_are_not_utf8_are_left_out(tmp_path, made):
    select = (
        "select case when range in (5, 3000) then '\\xff'::blob else encode('Text ' || range) end "
        "as text, range::varchar as id from range(5000)"
    )
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"copy ({select}) to '{path}' (format parquet, row_group_size 2048)")
    assert extract(made, path) == 0
    texts, origins, record = extracted(made)
    assert len(texts) == 4998
    assert [texts[5], origins[5]["id"], texts[-1]] == ["Text 6", "6", "Text 4999"]
    assert record["bad"] == {"text is not text": 2}


def test_a_corpus_reads_documents_without_near_duplicates(tmp_path, made):
    near = {"text": "A long story about lamps and quays and boats in the harbour, again. " * 9}
    again = {"text": near["text"] + "Once more."}
    WRITERS["plain.jsonl"](tmp_path / "a.jsonl", [*DOCUMENTS, near, again])
    assert extract(made, tmp_path / "a.jsonl") == 0
    given = ["--documents", str(made / "file.txt")]
    settings = {"sources": ["documents"], "deduplicate": {"documents": "near"}}
    assert assemble(tmp_path, *given, **settings) == 0
    entry = manifest_of(tmp_path)["sources"]["documents"]
    assert entry["dropped"]["near duplicates"]["documents"] >= 1
    splits = ("train", "validation")
    train, held_out = (read(tmp_path / "corpus", split, "documents") for split in splits)
    assert not set(train) & set(held_out)
    (made / "file.index").write_bytes(b"")
    assert assemble(tmp_path, *given, **settings) == 1
