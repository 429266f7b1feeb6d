"""Token shards: they are read back across their borders, and damage is refused."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import tokenizer_of

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import (
    ShardWriter,
    TokenSequence,
    TokenStore,
    token_dtype,
    write_manifest,
)


def write_store(folder: Path, tokenizer: Tokenizer) -> Path:
    """Write two sources of 25 and 10 tokens in train, and one in validation; ids count up."""
    folder.mkdir()
    dtype = token_dtype(tokenizer.vocab_size)
    splits: dict = {"train": {}, "validation": {}}
    for split, source, count in (
        ("train", "gutenberg", 25),
        ("train", "fineweb", 10),
        ("validation", "gutenberg", 3),
        ("validation", "fineweb", 0),
    ):
        writer = ShardWriter(folder, f"{split}-{source}", dtype, shard_tokens=10)
        ids = np.arange(count, dtype=np.int32)
        for part in (ids[:4], ids[4:5], ids[5:]):
            writer.write(part)
        splits[split][source] = writer.entry(documents=1, size=7 * count)
    write_manifest(folder, tokenizer, "corpus", splits)
    return folder / "manifest.json"


@pytest.fixture
def manifest(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return write_store(tmp_path / "tokens", tokenizer)


def test_shards_are_filled_one_after_another(manifest: Path):
    entry = json.loads(manifest.read_text())["splits"]["train"]["gutenberg"]
    assert [(shard["file"], shard["tokens"]) for shard in entry["shards"]] == [
        ("train-gutenberg-000.bin", 10),
        ("train-gutenberg-001.bin", 10),
        ("train-gutenberg-002.bin", 5),
    ]
    assert (manifest.parent / "train-gutenberg-001.bin").read_bytes() == np.arange(
        10, 20, dtype="<u2"
    ).tobytes()


def test_a_store_by_split_and_source(manifest: Path, tokenizer: Tokenizer):
    store = TokenStore.open(manifest)
    assert store.vocab_size == tokenizer.vocab_size
    assert store.tokenizer_fingerprint == tokenizer.fingerprint
    assert store.fingerprint == store.manifest["fingerprint"]
    assert store.sources("train") == ["gutenberg", "fineweb"]
    assert store.sources("validation") == ["gutenberg"]
    assert (
        store.bytes("train"),
        store.bytes("train", "fineweb"),
        store.bytes("validation", "fineweb"),
    ) == (245, 70, 0)
    assert store.tokens("train")[:].tolist() == [*range(25), *range(10)]
    assert store.tokens("train", "fineweb")[:].tolist() == [*range(10)]
    assert len(store.tokens("validation", "fineweb")) == 0
    assert store.tokens("validation", "fineweb")[:5].tolist() == []


def test_slices_across_borders_are_int32_copies(manifest: Path):
    sequence = TokenStore.open(manifest).tokens("train")
    part = sequence[8:27]
    assert part.dtype == np.int32
    assert part.tolist() == [*range(8, 25), 0, 1]
    part[:] = 0
    assert sequence[8:10].tolist() == [8, 9]


@given(
    st.lists(st.integers(1, 5), max_size=5),
    st.none() | st.integers(-20, 20),
    st.none() | st.integers(-20, 20),
)
@settings(deadline=None)
def test_bounds_are_those_of_python(sizes: list[int], start: int | None, stop: int | None):
    values = list(range(sum(sizes)))
    borders = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    sequence = TokenSequence(
        [np.array(values[low:high], np.uint16) for low, high in pairwise(borders)]
    )
    assert len(sequence) == len(values)
    assert sequence[start:stop].tolist() == values[start:stop]


@pytest.mark.parametrize("index", [3, slice(0, 9, 2)])
def test_only_plain_slices_are_read(manifest: Path, index):
    with pytest.raises(TypeError, match="slices"):
        TokenStore.open(manifest).tokens("train")[index]


def test_dtype_is_as_wide_as_needed():
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32
    assert token_dtype(65_536).newbyteorder("=") == np.dtype("uint16")


def test_another_tokenizer_is_refused_by_fingerprint(manifest: Path, tokenizer: Tokenizer):
    store = TokenStore.open(manifest)
    store.check_tokenizer(tokenizer, "mine.json")
    with pytest.raises(UserError, match=r"made with another tokenizer .* than yours.json"):
        store.check_tokenizer(tokenizer_of([b"other text, other text"], 280), "yours.json")


def test_a_shard_of_another_size_is_named(manifest: Path):
    shard = manifest.parent / "train-gutenberg-001.bin"
    for content in (shard.read_bytes()[:-1], shard.read_bytes() + b"\0\0"):
        shard.write_bytes(content)
        with pytest.raises(
            UserError, match=r"train-gutenberg-001.bin: .* bytes where manifest.json says 20 bytes"
        ):
            TokenStore.open(manifest)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-gutenberg-001.bin: no such file"):
        TokenStore.open(manifest)


def test_a_changed_manifest_is_refused(manifest: Path):
    content = json.loads(manifest.read_text())
    content["splits"]["train"]["fineweb"]["bytes"] += 1
    manifest.write_text(json.dumps(content))
    with pytest.raises(UserError, match="its content and its fingerprint do not fit"):
        TokenStore.open(manifest)


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"fingerprint": 1, "tokenizer": "", "vocab_size": 300}', "no json"]
)
def test_what_is_no_manifest_gets_one_sentence(manifest: Path, content: str):
    manifest.write_text(content)
    with pytest.raises(UserError, match="not "):
        TokenStore.open(manifest)
