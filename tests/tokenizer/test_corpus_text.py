"""Reading a corpus, and an even sample of it."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizer_samples import prose_documents, write_corpus

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.corpus_text import SAMPLE_BLOCK, Corpus, FileBytes, sample
from nanoeuler.tokenizer.counting import Piece, count_pieces


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
    assert sum(map(len, blocks)) == pytest.approx(total / 4, rel=0.01)
    from_books = [block for block in blocks if b" book book" in block]
    assert sum(map(len, from_books)) == pytest.approx(4 * 500_000 / 4, rel=0.03)
    documents = prose_documents(2_000)
    whole = [documents.index(block) for block in blocks[len(from_books) :] if block in documents]
    gaps = [after - before for before, after in pairwise(whole)]
    assert max(gaps) - 1 < 4 * SAMPLE_BLOCK / min(map(len, documents))
    assert 3 <= sum(gap > 10 for gap in gaps) <= len(b"".join(documents)) / SAMPLE_BLOCK / 4 + 1


def test_words_of_a_sample_are_words_of_the_text(manifest: Path):
    texts = Corpus(manifest).texts["train"]
    every, taken = (
        dict(count_pieces(sample(texts, wanted)).items()) for wanted in (10**12, 300_000)
    )
    assert all(count <= every.get(word, 0) for word, count in taken.items())
    assert sum(taken.values()) > 50_000


def test_groups_of_a_source_are_sampled_as_one_text(manifest: Path):
    (_, web) = Corpus(manifest).texts["train"]
    middle = int(web.offsets[1_000])
    groups = []
    for number, rows in enumerate((slice(0, 1_001), slice(1_000, None))):
        offsets = web.offsets[rows] - web.offsets[rows][0]
        path = manifest.parent / f"{number}.txt"
        path.write_bytes(web.data[:middle] if number == 0 else web.data[middle:])
        groups.append(replace(web, data=FileBytes(path), offsets=offsets))
    wanted = len(web.data) // 10
    text = b"".join(map(content, sample(groups, wanted)))
    assert text == b"".join(map(content, sample([web], wanted)))


def test_a_sample_reads_little_more_than_itself(tmp_path: Path):
    texts = {"train": [b"book " * 20_000] * 100 + prose_documents(20_000), "validation": []}
    manifest = write_corpus(tmp_path / "corpus", {"fineweb": texts})
    wanted = 400_000
    before = bytes_read()
    taken = list(sample(Corpus(manifest, sampled=wanted).texts["train"], wanted))
    counted = count_pieces(taken)
    read = bytes_read() - before
    assert sum(piece.stop - piece.start for piece in taken) == pytest.approx(wanted, rel=0.02)
    assert len(counted) > 100
    assert (
        wanted < read < 1.1 * wanted < 0.05 * (manifest.parent / "train/fineweb.txt").stat().st_size
    )
    assert [piece[1:] for piece in taken] == [
        piece[1:] for piece in sample(Corpus(manifest).texts["train"], wanted)
    ]


def bytes_read() -> int:
    """Bytes that this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_offsets_that_do_not_rise_around_a_sample_get_one_sentence(manifest: Path):
    offsets = manifest.parent / "train/fineweb.offsets"
    values = np.fromfile(offsets, "<u8")
    values[1:-2:2], values[2:-1:2] = values[2:-1:2].copy(), values[1:-2:2].copy()
    values.tofile(offsets)
    with pytest.raises(UserError, match=r"fineweb.offsets: damaged"):
        list(sample(Corpus(manifest, sampled=1_000_000).texts["train"], 1_000_000))


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
