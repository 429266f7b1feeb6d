"""The fast learner, `reference.py` and the `tokenizers` library learn the same merges."""

import json
from collections import Counter

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import PROSE, regex_words

from nanoeuler.tokenizer import counting
from nanoeuler.tokenizer import reference as slow_bpe
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.corpus_text import Piece
from nanoeuler.tokenizer.counting import WordTable, count_pieces, count_words
from nanoeuler.tokenizer.vocabulary import BYTE_OF_CHARACTER, SMALLEST, SPECIALS, build


def table(counts: dict[str, int]) -> WordTable:
    """Count words of one class each."""
    return count_words(word.encode() for word, count in counts.items() for _ in range(count))


def slowly(counts: WordTable, vocab_size: int) -> list[tuple[int, int]]:
    return slow_bpe.learn(dict(counts.items()), vocab_size)


def test_the_example_of_the_paper():
    pairs = learn(table({"low": 5, "lower": 2, "newest": 6, "widest": 3}), SMALLEST + 4)
    assert build(pairs).tokens[SMALLEST:] == [b"es", b"est", b"lo", b"low"]


def test_ties_go_to_the_smallest_ids():
    pairs = learn(table({"xy": 3, "ab": 3, "ac": 3}), SMALLEST + 3)
    assert build(pairs).tokens[SMALLEST:] == [b"ab", b"ac", b"xy"]


def test_overlapping_pairs_merge_from_the_left():
    pairs = learn(table({"aaaaa": 2}), SMALLEST + 9)
    assert build(pairs).tokens[SMALLEST:] == [b"aa", b"aaa", b"aaaaa"]  # aa aa a, then aa aaa


def test_a_pair_that_stands_once_is_not_merged():
    assert learn(table({"abc": 1}), 1000) == []


@given(
    st.dictionaries(
        st.text("ab", min_size=1, max_size=24) | st.text("abcé", min_size=1, max_size=12),
        st.integers(1, 9),
        max_size=12,
    )
)
@settings(deadline=None)
def test_fast_equals_slow_on_random_words(counts: dict[str, int]):
    assert learn(table(counts), SMALLEST + 30) == slowly(table(counts), SMALLEST + 30)


def test_fast_equals_slow_on_prose():
    counts = count_words([PROSE.encode() * 2])
    pairs = learn(counts, 10_000)
    assert len(pairs) > 100
    assert pairs == slowly(counts, 10_000)


def test_fast_equals_slow_on_real_text(books: list[bytes], web: list[str]):
    counts = count_words([books[0][50_000:80_000], *(text.encode() for text in web[:3])])
    assert learn(counts, SMALLEST + 120) == slowly(counts, SMALLEST + 120)


def test_tokenizers_learns_the_same(books: list[bytes], web: list[str]):
    texts = [book.decode("utf-8", "replace") for book in books] + web[:300]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=8192,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(SPECIALS),
        initial_alphabet=list(BYTE_OF_CHARACTER),
    )
    peer.train_from_iterator(texts, trainer)
    theirs = json.loads(peer.to_str())["model"]
    assert learn(count_words(text.encode() for text in texts), 8192) == [
        (theirs["vocab"][left], theirs["vocab"][right]) for left, right in theirs["merges"]
    ]


def test_words_are_counted_in_bounded_memory():
    often = b" the" * 500 + b" sea" * 300
    rare = b"".join(f" {index:x}".encode() for index in range(5_000))
    exact = dict(count_words([often, rare]).items())
    assert exact[b" the"] == 500
    table = count_words(
        [piece for index in range(10) for piece in (often, rare[index * 2000 :][:2000])], most=1_000
    )
    assert len(table) <= 1_000
    bounded = dict(table.items())
    assert 4_900 < bounded[b" the"] < 5_000
    assert 2_900 < bounded[b" sea"] < 3_000
    assert len(bounded) == len(table)


def test_forgotten_words_are_counted_from_scratch_when_they_come_back():
    table = count_words([b" often often rare"])
    table.add(count_words([b" a b"]))
    table.forget_rarest()
    assert dict(table.items()) == {b" often": 1}
    table.add(count_words([b" rare rare often b"]))
    assert dict(table.items()) == {b" often": 2, b" rare": 2, b" b": 1}


@given(
    st.lists(
        st.text("ab c1\n'é東\x00", max_size=30).map(str.encode) | st.binary(max_size=20),
        max_size=20,
    )
)
@settings(deadline=None)
def test_words_are_counted_as_the_specification_cuts_them(texts: list[bytes]):
    assert dict(count_words(texts).items()) == Counter(
        word for text in texts for word in regex_words(text)
    )


def test_any_number_of_threads_counts_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counting, "BATCH", 1_000)
    text = "".join(f"{PROSE} {index} {index % 7:x}" for index in range(100)).encode()
    pieces = [Piece(text, start, start + 50) for start in range(0, len(text) - 50, 50)]
    for most in (100, 10**6):
        one, three = (list(count_pieces(pieces, threads, most).items()) for threads in (1, 3))
        assert one == three
    assert dict(one) == Counter(
        word for _, start, stop in pieces for word in regex_words(text[start:stop])
    )


def test_words_do_not_cross_texts():
    assert dict(count_words([b"ab", b"cd", b"ab"]).items()) == {b"ab": 2, b"cd": 1}


@pytest.mark.parametrize("word", ["a" * 1_000_000, "ab" * 500_000, " " * 1_000_000])
def test_one_long_word_is_learned_in_little_time(word: str):
    tokens = build(learn(table({word: 1}), SMALLEST + 12)).tokens
    assert len(tokens) == SMALLEST + 12
    assert max(map(len, tokens)) > 1_000
