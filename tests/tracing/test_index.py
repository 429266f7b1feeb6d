"""The index of token shards: its parts, its documents, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.storage.integrity import SEAL, seal
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import ShardWriter, TokenStore, write_manifest
from nanoeuler.tracing.index import Index, build_index, cut, matches, memorised


@pytest.fixture(scope="module")
def store(run, tmp_path_factory):
    """Two sources of documents, in shards of 100 tokens whose borders cut most documents."""
    folder, tokenizer = tmp_path_factory.mktemp("tokens"), Tokenizer.load(run.paths.tokenizer)
    random, splits = np.random.default_rng(4), {}
    for split, documents in (("train", 40), ("validation", 5)):
        splits[split] = {}
        for source in ("books", "my.web"):
            writer = ShardWriter(folder, f"{split}-{source}", np.dtype("<u2"), shard_tokens=100)
            for _ in range(documents):
                text = random.integers(50, 54, random.integers(1, 40))
                writer.write(np.append(tokenizer.end_id, text))
            splits[split][source] = writer.entry(documents, 1)
    write_manifest(folder, tokenizer, "made up", splits)
    return TokenStore.open(folder / "manifest.json")


@pytest.fixture(scope="module")
def index(run, store, tmp_path_factory):
    output = tmp_path_factory.mktemp("index") / "index"
    build_index(store.path, Path(run.paths.tokenizer), output, threads=2, size=64)
    return Index(output, store)


def test_every_place_is_found_though_parts_and_shards_cut_the_text(index, store):
    random = np.random.default_rng(6)
    assert len({part.first for part in index.parts if part.source == "books"}) > 5
    assert any(part.tokens.base is not None for part in index.parts)
    entries = index.manifest["splits"]["train"]["books"]["parts"]
    assert {entry["tokens"] is None for entry in entries} == {True, False}  # in a shard, or copied
    for size in (1, 2, 3, 5):
        for _ in range(10):
            span = random.integers(50, 54, size).astype(np.int32)
            for split in ("train", "validation"):
                for source in store.sources(split):
                    parts = [p for p in index.parts if (p.split, p.source) == (split, source)]
                    text = store.tokens(split, source)
                    windows = np.lib.stride_tricks.sliding_window_view(text[0 : len(text)], size)
                    expected = np.flatnonzero((windows == span).all(axis=1))
                    found = np.concatenate([part.find(span) for part in parts])
                    assert sorted(found.tolist()) == expected.tolist()


def test_a_place_tells_its_document(index, store):
    text = store.tokens("train", "my.web")
    starts = np.flatnonzero(text[0 : len(text)] == 0)
    assert index.starts("train", "my.web").tolist() == starts.tolist()
    for part in index.parts:
        if (part.split, part.source) == ("train", "my.web"):
            for first in part.find(np.array([50, 51], np.int32)).tolist():
                place = index.place(part, first)
                assert starts[place.document] < first
                assert place.document + 1 == len(starts) or first < starts[place.document + 1]
    assert index.offset("my.web") == len(store.tokens("train", "books"))


def test_parts_have_whole_documents_and_at_least_one():
    starts = np.array([0, 4, 9, 40, 43])
    assert list(cut(starts, 50, 10)) == [(0, 9), (9, 40), (40, 50)]
    assert list(cut(starts, 50, 1000)) == [(0, 50)]


def test_memorised_tokens_are_those_in_long_spans(index, store):
    text = store.tokens("train", "books")
    whole = text[0 : len(text)].tolist()
    ids = np.array(whole[1:30] + [200] * 60, np.int32)
    assert memorised(index.parts, ids) == 0  # no document has fifty tokens
    assert matches(index.parts, ids)[0] > 2


@pytest.mark.parametrize("suffix", ["order", "tokens", "starts"])
def test_a_flipped_bit_is_refused_by_name(run, store, tmp_path, suffix):
    output = tmp_path / "index"
    build_index(store.path, Path(run.paths.tokenizer), output, size=64)
    path = sorted(output.glob(f"train-books*.{suffix}"))[0]
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(content)
    damaged = Index(output, store)
    with pytest.raises(UserError, match=f"{path.name}: its bytes are not those that"):
        _ = damaged.parts, damaged.starts("train", "books")


def test_an_index_of_other_tokens_and_one_that_was_changed_are_refused(index, store, tmp_path):
    content = {key: value for key, value in index.manifest.items() if key != SEAL}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(seal(content | {"tokens": "f" * 64})))
    with pytest.raises(UserError, match="an index of other tokens"):
        Index(tmp_path, store)
    path.write_text(json.dumps(content | {SEAL: "0" * 64}))
    with pytest.raises(UserError, match="not those that `nanoeuler index` wrote"):
        Index(tmp_path, store)


def test_another_tokenizer_is_refused(store, tmp_path, capsys):
    other = ["--tokenizer", "models/novels/tokenizer.json", "--output", str(tmp_path / "index")]
    assert main(["index", "--tokens", str(store.path), *other]) == 1
    assert "made with another tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
