"""Encoding and decoding: exact round trips, and the ids of `tokenizers` on any text."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import (
    CODE_POINTS,
    ONE_OF_EACH_CLASS,
    PROSE,
    encode_each,
    read_by_peer,
    read_by_tiktoken,
    texts,
    tokenizer_of,
)

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer import reference as slow_bpe
from nanoeuler.tokenizer.encoder import Encoder
from nanoeuler.tokenizer.vocabulary import SMALLEST, SPECIALS, build

any_bytes = (
    st.binary()
    | texts.map(str.encode)
    | st.lists(st.sampled_from([b" the", b"\xc3", b"\xa9", b"\xff", b"'s", b"\n\n", b"</s>"])).map(
        b"".join
    )
)


def test_layout_of_ids(tokenizer: Tokenizer):
    assert tokenizer.special_ids == {literal: index for index, literal in enumerate(SPECIALS)}
    assert len(SPECIALS) == 16
    assert tokenizer.end_id == 0
    assert tokenizer.token_bytes(0) == b"</s>"
    assert [
        tokenizer.token_bytes(16),
        tokenizer.token_bytes(16 + 93),
        tokenizer.token_bytes(271),
    ] == [b"!", b"~", b"\xad"]
    assert tokenizer.is_special(15)
    assert not tokenizer.is_special(16)
    assert tokenizer.vocab_size > SMALLEST


def test_ids_are_an_int32_array(tokenizer: Tokenizer):
    for text in ("", "a few words", b"and bytes"):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert ids.ndim == 1
        ids += 0  # one's own copy


def test_text_and_its_bytes_have_the_same_ids(tokenizer: Tokenizer):
    assert tokenizer.encode(PROSE).tolist() == tokenizer.encode(PROSE.encode()).tolist()


@given(any_bytes)
@settings(deadline=None)
def test_round_trip_of_any_bytes(tokenizer: Tokenizer, data: bytes):
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")


@given(any_bytes)
@settings(deadline=None)
def test_text_never_becomes_a_special_id(tokenizer: Tokenizer, data: bytes):
    assert all(index >= 16 for index in tokenizer.encode(data))


def test_literal_specials_are_text(tokenizer: Tokenizer):
    for literal in SPECIALS:
        ids = tokenizer.encode(f"a{literal}b {literal}")
        assert min(ids) >= 16
        assert tokenizer.decode(ids) == f"a{literal}b {literal}"


def test_special_ids_are_shown_as_their_literals(tokenizer: Tokenizer):
    assert tokenizer.decode([0, *tokenizer.encode("Hi"), 2]) == "</s>Hi<|user|>"


def test_a_lone_surrogate_gets_one_sentence(tokenizer: Tokenizer):
    with pytest.raises(UserError, match=r"character 2 of the text is U\+D83D, a lone surrogate"):
        tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("ids", [[-1], [10_000], np.array([3, -7])])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, ids):
    with pytest.raises(ValueError, match="do not fit a vocabulary"):
        tokenizer.decode_bytes(ids)


@given(
    st.lists(st.text("ab", min_size=1, max_size=30), min_size=1, max_size=6),
    st.text("ab", max_size=60),
)
@settings(deadline=None)
def test_merging_follows_the_slow_encoder(words: list[str], text: str):
    tokenizer = tokenizer_of([word.encode() for word in words * 2], SMALLEST + 25)
    assert tokenizer.encode(text).tolist() == slow_bpe.encode(text.encode(), tokenizer.vocabulary)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique=True, max_size=25),
    st.text('!"#', max_size=40),
)
@settings(deadline=None)
def test_merges_in_any_order_follow_the_slow_encoder_and_tokenizers(
    tmp_path_factory: pytest.TempPathFactory, choices: list[tuple[int, int]], text: str
):
    """No learner gives such merges: some cannot be used, and several make the same token."""
    made, pairs = [16, 17, 18], []
    for left, right in choices:
        pair = made[left % len(made)], made[right % len(made)]
        if (
            pair not in pairs
            and len(build(pairs).tokens[pair[0]] + build(pairs).tokens[pair[1]]) < 20
        ):
            pairs.append(pair)
            made.append(build(pairs).merges[-1][2])
    tokenizer = Tokenizer(build(pairs))
    ids = tokenizer.encode(text).tolist()
    assert ids == slow_bpe.encode(text.encode(), tokenizer.vocabulary)
    assert (
        ids
        == read_by_peer(tokenizer, tmp_path_factory.getbasetemp() / "any-order.json")
        .encode(text)
        .ids
    )


def test_forgetting_words_changes_nothing(tokenizer: Tokenizer):
    text = "".join(f" w{index % 7}{PROSE}" for index in range(50)).encode()
    borders = np.array([0, len(text)])
    forgetful, usual = (
        Encoder(tokenizer.vocabulary, cache_slots).encode(text, borders, 0, 1)
        for cache_slots in (2, 1 << 12)
    )
    assert forgetful.tolist() == usual.tolist()


def test_threads_encode_with_one_tokenizer_at_once(tokenizer: Tokenizer):
    texts = [f"{PROSE}{index}" * 20 for index in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert [ids.tolist() for ids in pool.map(tokenizer.encode, texts)] == [
            tokenizer.encode(text).tolist() for text in texts
        ]


def test_pieces_are_framed_and_no_word_crosses_them(tokenizer: Tokenizer):
    long = b"x" * 3_000  # finds no room at first
    for content, starts in ((b"ab abab", [0, 2, 4]), (long + b"the" + long, [0, 3_000, 3_003])):
        pieces = [content[start:stop] for start, stop in pairwise([*starts, len(content)])]
        for framed in (0, 1, 3):
            ids = Encoder(tokenizer.vocabulary).encode(
                content, np.array([*starts, len(content)]), 7, framed
            )
            assert ids.tolist() == [
                index
                for number, piece in enumerate(pieces)
                for index in [7] * (number >= framed) + tokenizer.encode(piece).tolist()
            ]


def test_a_long_word_is_encoded_in_little_time(tokenizer: Tokenizer, peer: tokenizers.Tokenizer):
    for text in (
        "a" * 200_000,
        " " * 200_000,
        "\n" * 200_000,
        "\x00" * 10_000,
        "the" * 50_000,
        "\u0301" * 10_000,
    ):
        assert tokenizer.encode(text).tolist() == peer.encode(text).ids


def test_ids_of_code_points_equal_tokenizers(tokenizer: Tokenizer, peer: tokenizers.Tokenizer):
    """Of every fifth; all are classified in test_pretokenizer.py."""
    alone = [chr(code) for code in CODE_POINTS[::5]]
    for start in range(0, len(alone), 10_000):
        part = alone[start : start + 10_000]
        # a batch of single characters would cost its threads more than the characters do
        assert encode_each(tokenizer, part) == [peer.encode(text).ids for text in part]


def test_ids_of_pairs_of_classes_equal_tokenizers(tokenizer: Tokenizer, peer: tokenizers.Tokenizer):
    pairs = [first + second for first in ONE_OF_EACH_CLASS for second in ONE_OF_EACH_CLASS]
    assert [tokenizer.encode(text).tolist() for text in pairs] == [
        encoding.ids for encoding in peer.encode_batch(pairs)
    ]


@given(texts)
@settings(deadline=None)
def test_ids_and_text_of_random_unicode_equal_tokenizers(
    tokenizer: Tokenizer, peer: tokenizers.Tokenizer, text: str
):
    ids = tokenizer.encode(text).tolist()
    assert ids == peer.encode(text).ids
    assert peer.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids) == text


@given(st.lists(st.integers(0, 299), max_size=20))
@settings(deadline=None)
def test_text_of_random_ids_equals_tokenizers(
    tokenizer: Tokenizer, peer: tokenizers.Tokenizer, ids: list[int]
):
    assert peer.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)


@pytest.mark.parametrize("vocab_size", [512, 4096])
def test_ids_of_real_books_and_web_equal_tokenizers(
    books: list[bytes], web: list[str], vocab_size: int, tmp_path
):
    tokenizer = tokenizer_of([*books[:4], *(text.encode() for text in web[:300])], vocab_size)
    peer = read_by_peer(tokenizer, tmp_path / "tokenizer.json")
    documents = [book.decode("utf-8", "replace") for book in books[3:]] + web[200:500]
    assert [tokenizer.encode(text).tolist() for text in documents] == [
        encoding.ids for encoding in peer.encode_batch_fast(documents)
    ]
    theirs = read_by_tiktoken(tokenizer).encode_ordinary_batch(documents, num_threads=1)
    assert [(tokenizer.encode(text) - len(SPECIALS)).tolist() for text in documents] == theirs
    assert all(tokenizer.decode_bytes(tokenizer.encode(book)) == book for book in books)
