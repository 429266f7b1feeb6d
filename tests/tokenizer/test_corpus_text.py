"""Reading a corpus, and an even sample of it."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizer_samples import prose_documents, write_corpus

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.corpus_text import SAMPLE_BLOCK, Corpus, sample
from nanoeuler.tokenizer.counting import Piece


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    books = {
        "train": [bytes([65 + index]) * 8 + b" book" * 100_000 for index in range(4)],
        "validation": [b"held out"],
    }
    web = {"train": prose_documents(2_000), "validation": []}
    return write_corpus(tmp_path / "corpus", {"gutenberg": books, "fineweb": web})


def content(piece: Piece) -> bytes:
    return piece.data[piece.start : piece.stop]


def test_documents_are_read_back(manifest: Path):
    books, web = Corpus(manifest).texts["train"]
    assert (books.source, web.source) == ("gutenberg", "fineweb")
    assert [web.data[start:stop] for start, stop in web.borders()] == prose_documents(2_000)
    held_out, nothing = Corpus(manifest).texts["validation"]
    assert (held_out.documents, nothing.documents, nothing.data[:]) == (1, 0, b"")


def test_a_sample_of_all_is_all(manifest: Path):
    texts = Corpus(manifest).texts["train"]
    for wanted in (sum(len(text.data) for text in texts), 10**12):
        assert b"".join(map(content, sample(texts, wanted))) == b"".join(
            text.data[:] for text in texts
        )


def test_a_sample_is_spread_over_sources_and_documents(manifest: Path):
    texts = Corpus(manifest).texts["train"]
    total = sum(len(text.data) for text in texts)
    blocks = list(map(content, sample(texts, total // 4)))
    assert blocks == list(map(content, sample(texts, total // 4)))
    assert 0 <= sum(map(len, blocks)) - total // 4 <= 2 * SAMPLE_BLOCK
    from_books = sum(b" book book" in block for block in blocks)
    assert from_books * SAMPLE_BLOCK == pytest.approx(4 * 500_000 / 4, rel=0.03)
    documents = prose_documents(2_000)
    places = [documents.index(block) for block in blocks[from_books:]]
    assert places[0] == 0
    assert max(after - before for before, after in pairwise(places)) < 40
    assert sum(map(len, blocks[from_books:])) == pytest.approx(
        sum(map(len, documents)) / 4, rel=0.01
    )


def test_no_source_goes_without(tmp_path: Path):
    corpus = write_corpus(
        tmp_path / "corpus",
        {
            "web": {"train": prose_documents(100), "validation": []},
            "own": {"train": [b"mine"], "validation": []},
        },
    )
    blocks = list(map(content, sample(Corpus(corpus).texts["train"], 500)))
    assert 500 <= sum(map(len, blocks)) < 1_500
    assert blocks[-1] == b"mine"


def test_files_that_do_not_fit_the_manifest_get_one_sentence(manifest: Path):
    folder = manifest.parent
    whole = {
        path: path.read_bytes()
        for path in (folder / "train/fineweb.txt", folder / "train/fineweb.offsets")
    }
    for path, content in whole.items():
        path.write_bytes(content[:-8])
        with pytest.raises(
            UserError, match=f"{path.name}: .* bytes where manifest.json says .* bytes"
        ):
            Corpus(manifest)
        path.unlink()
        with pytest.raises(UserError, match=f"{path.name}: no such file"):
            Corpus(manifest)
        path.write_bytes(content)
    offsets = folder / "train/fineweb.offsets"
    offsets.write_bytes(bytes(8) + whole[offsets][16:] + whole[offsets][8:16])
    with pytest.raises(UserError, match=r"fineweb.offsets: damaged"):
        Corpus(manifest)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"fingerprint": "x"}',
        '{"fingerprint": "x", "sources": [1]}',
        '{"fingerprint": "x", "sources": {"a": {}}}',
    ],
)
def test_what_is_no_corpus_manifest_gets_one_sentence(manifest: Path, content: str):
    manifest.write_text(content)
    with pytest.raises(UserError, match=r"not a corpus manifest"):
        Corpus(manifest)
    shutil.rmtree(manifest.parent)
    with pytest.raises(UserError, match="no such file"):
        Corpus(manifest)
