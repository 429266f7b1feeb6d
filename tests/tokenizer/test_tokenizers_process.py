"""The `tokenizers` library on files of strangers: what ends or keeps a process is one sentence."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.huggingface_encoder import HuggingFaceEncoder
from tests.strange_tokenizers import PANICS, write_strange


@pytest.fixture
def make(tmp_path):
    """A function that loads such a tokenizer."""

    def load(regex=r"\w+|\W", normalizer=None):
        write_strange(tmp_path / "tokenizer.json", regex, normalizer)
        return Tokenizer.load(tmp_path / "tokenizer.json")

    return load


def test_texts_of_all_kinds_pass(make):
    tokenizer = make()
    tokenizer.encoder.try_out()
    for text in ("It's", "", "\x00", "café 日本語 🎉 <end>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("charsmap", "words"),
    [
        ("", "Cannot parse precompiled_charsmap"),
        ("AAAAAA==", "index out of bounds"),
        ("BAAAAAAAAAAA", "index out of bounds"),
    ],
)
def test_a_bad_charsmap_is_one_sentence(make, charsmap, words, capfd):
    """It is a panic, which is no `Exception`, when the file or a text is read."""
    tokenizer = make(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})
    with pytest.raises(UserError, match=f"the tokenizers library does not read .*{words}"):
        tokenizer.encoder.try_out()
    assert "panicked" not in "".join(capfd.readouterr())


def test_an_expression_that_gives_up_is_one_sentence_and_the_next_text_is_encoded(make):
    tokenizer = make(PANICS)
    tokenizer.encoder.try_out()
    with pytest.raises(UserError, match=r"a text of 5,001 bytes: .*retry-limit-in-match over"):
        tokenizer.encode("q" * 5000 + "b")
    assert tokenizer.decode(tokenizer.encode("quick")) == "quick"


def test_an_expression_that_takes_long_is_stopped(make):
    """By the seconds of a core that it takes, however busy the machine is."""
    tokenizer = make(r"\s*\s*b|.|\s")
    assert tokenizer.decode(tokenizer.encode("a b  c")) == "a b  c"
    with pytest.raises(UserError, match="it takes too long, as by a regular expression"):
        tokenizer.encode(" " * 4000)
    assert tokenizer.decode(tokenizer.encode("a b  c")) == "a b  c"


def test_a_replacement_that_fills_the_memory_is_stopped(make):
    normalizer = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1_000_000}
    tokenizer = make(normalizer=normalizer)
    assert len(tokenizer.encode("x")) == 1
    # which comes first depends on how fast the machine fills it
    stopped = "it ended by SIGABRT, as where a file is damaged or too much|it takes too long"
    with pytest.raises(UserError, match=stopped):
        tokenizer.encode("a" * 5000)
    assert len(tokenizer.encode("x")) == 1


def test_a_forked_process_encodes_too_and_leaves_ours_alone(make):
    tokenizer = make()
    expected = tokenizer.encode("the hill").tolist()
    child = os.fork()
    if child == 0:
        same = tokenizer.encode("the hill").tolist() == expected
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert tokenizer.encode("the hill").tolist() == expected


def test_threads_share_the_processes(make):
    tokenizer = make()
    encoder = tokenizer.encoder
    assert isinstance(encoder, HuggingFaceEncoder)
    texts = [f"the hill {number}".encode() for number in range(60)]
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(lambda text: encoder.encode(text, np.array([0, len(text)]), 7, 0), texts)
        )
    for text, ids in zip(texts, found, strict=True):
        assert ids[0] == 7
        assert tokenizer.decode_bytes(ids[1:]) == text
    assert 1 <= len(encoder.idle) <= 3
