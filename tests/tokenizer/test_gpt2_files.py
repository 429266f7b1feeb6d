"""GPT-2's own vocabulary is imported, and encodes as `tiktoken` does from the same files."""

import json
import shutil
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizer_samples import (
    CODE_POINTS,
    ONE_OF_EACH_CLASS,
    PROSE,
    TIKTOKEN_PATTERN,
    encode_each,
    write_corpus,
)

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer, gpt2_files
from nanoeuler.tokenizer.shards import TokenStore


@pytest.fixture(scope="session")
def gpt2_folder() -> Path:
    folder = Path(__file__).resolve().parents[2] / "../shared/data/gpt2"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: this test needs the shared data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    output = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    assert main(["import-gpt2", str(gpt2_folder), "--output", str(output)]) == 0
    return Tokenizer.load(output)


@pytest.fixture(scope="session")
def peer(gpt2_folder: Path) -> tiktoken.Encoding:
    """tiktoken's `gpt2`, read from the same files by tiktoken."""
    ranks = data_gym_to_mergeable_bpe_ranks(
        str(gpt2_folder / "vocab.bpe"), str(gpt2_folder / "encoder.json")
    )
    return tiktoken.Encoding(
        "gpt2",
        pat_str=TIKTOKEN_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 50256},
        explicit_n_vocab=50257,
    )


def test_ids_of_known_text(gpt2: Tokenizer):
    assert gpt2.vocab_size == 50_257
    assert gpt2.end_id == 50_256
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.decode([15496, 995, 50256]) == "Hello world<|endoftext|>"
    assert 50_256 not in gpt2.encode("<|endoftext|>")


def test_real_books_and_web_have_the_ids_of_tiktoken(
    gpt2: Tokenizer, peer: tiktoken.Encoding, books: list[bytes], web: list[str]
):
    for text in [book.decode("utf-8", "replace") for book in books] + web[:300]:
        assert gpt2.encode(text).tolist() == peer.encode_ordinary(text)


@given(
    st.text() | st.lists(st.sampled_from([*ONE_OF_EACH_CLASS, "ing", "tion", "'s"])).map("".join)
)
@settings(deadline=None)
def test_random_unicode_has_the_ids_of_tiktoken(
    gpt2: Tokenizer, peer: tiktoken.Encoding, text: str
):
    assert gpt2.encode(text).tolist() == peer.encode_ordinary(text)


def test_code_points_have_the_ids_of_tiktoken(gpt2: Tokenizer, peer: tiktoken.Encoding):
    texts = list(map(chr, CODE_POINTS[::5]))  # tiktoken takes 20 s for all of them
    assert encode_each(gpt2, texts) == peer.encode_ordinary_batch(texts, num_threads=1)


def test_the_file_is_read_by_tokenizers(gpt2: Tokenizer, tmp_path: Path):
    gpt2.save(tmp_path / "tokenizer.json")
    assert (
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(PROSE).ids
        == gpt2.encode(PROSE).tolist()
    )


def test_a_corpus_is_tokenized_with_it(gpt2: Tokenizer, tmp_path: Path):
    gpt2.save(tmp_path / "tokenizer.json")
    corpus = write_corpus(
        tmp_path / "corpus", {"web": {"train": [b"Hello world", b" world"], "validation": []}}
    )
    config = '{"tokenizer": {"vocab_size": 50257}}'
    command = [
        "tokenize",
        "--config",
        config,
        "--corpus",
        str(corpus),
        "--tokenizer",
        str(tmp_path / "tokenizer.json"),
        "--output",
        str(tmp_path / "tokens"),
    ]
    assert main(command) == 0
    assert TokenStore.open(tmp_path / "tokens/manifest.json").tokens("train")[:].tolist() == [
        50256,
        15496,
        995,
        50256,
        995,
    ]


def test_damaged_files_get_one_sentence(gpt2_folder: Path, tmp_path: Path):
    for name in ("encoder.json", "vocab.bpe"):
        with pytest.raises(UserError, match=f"{name}: no such file"):
            gpt2_files.read(tmp_path)
        shutil.copy(gpt2_folder / name, tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nĠ t\nzz qqq\n")
    with pytest.raises(
        UserError,
        match=r"vocab.bpe: damaged: merge 1 is zz \+ qqq, "
        r"but 'qqq' is not in its vocab; fetch both files",
    ):
        gpt2_files.read(tmp_path)
    (tmp_path / "vocab.bpe").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"vocab.bpe: damaged: not UTF-8"):
        gpt2_files.read(tmp_path)
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0}))
    with pytest.raises(UserError, match=r"encoder.json: not GPT-2's"):
        gpt2_files.read(tmp_path)
