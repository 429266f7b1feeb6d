"""Words: GPT-2's pattern on Unicode 16, over text and over any bytes."""

import unicodedata
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import (
    CODE_POINTS,
    ONE_OF_EACH_CLASS,
    PROSE,
    regex_words,
    scanned_words,
    texts,
)
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Split

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.corpus_text import FileBytes, blocks
from nanoeuler.tokenizer.scanner import read_ranges
from nanoeuler.tokenizer.tokenizer import to_bytes

PEER = ByteLevel(add_prefix_space=False, use_regex=True)


def peer_words(text: str) -> list[str]:
    return [text[start:stop] for _, (start, stop) in PEER.pre_tokenize_str(text)]


def words(text: str) -> list[str]:
    return [word.decode() for word in scanned_words(text.encode())]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Hello world", ["Hello", " world"]),
        ("they're I'll don't", ["they", "'re", " I", "'ll", " don", "'t"]),
        ("DON'T 'tis", ["DON", "'", "T", " '", "tis"]),
        ("a  b", ["a", " ", " b"]),
        ("a \n b  ", ["a", " \n", " b", "  "]),
        ("\n\n\nx", ["\n\n", "\n", "x"]),
        ("r2d2 = 3.14!", ["r", "2", "d", "2", " =", " 3", ".", "14", "!"]),
        ("", []),
    ],
)
def test_words_by_hand(text: str, cut: list[str]):
    assert words(text) == cut


def test_table_agrees_with_python_where_both_know_a_character():
    """Python's Unicode is older or newer than 16: letters and numbers of both must be the same."""
    ranges = read_ranges()
    letters, numbers = (set(chain(*ranges[name])) for name in ("LETTERS", "NUMBERS"))
    assert not letters & numbers
    for code in (*range(0x3000), *range(0x1D400, 0x1D800)):
        category = unicodedata.category(chr(code))
        if category != "Cn":
            assert (code in letters, code in numbers) == (category[0] == "L", category[0] == "N"), (
                hex(code)
            )


def test_every_code_point_is_classified_as_tokenizers_does():
    """In "a?!?1", with "?" for the code point, each class joins another of the other characters.

    A letter joins the a, a number the 1, white space none, and any other code point the !.
    """
    for start in range(0, len(CODE_POINTS), 10_000):
        text = "".join(
            f"a{character}!{character}1"
            for character in map(chr, CODE_POINTS[start : start + 10_000])
        )
        assert words(text) == peer_words(text)


def test_every_triple_of_classes_is_cut_as_tokenizers_does():
    for first in ONE_OF_EACH_CLASS:
        for second in ONE_OF_EACH_CLASS:
            for third in ONE_OF_EACH_CLASS:
                text = first + second + third
                assert words(text) == peer_words(text), text


@given(texts)
@settings(deadline=None)
def test_random_text_is_cut_as_tokenizers_does(text: str):
    assert words(text) == peer_words(text)


@given(texts)
@settings(deadline=None)
def test_text_is_cut_by_the_published_pattern(text: str):
    published = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    assert words(text) == [
        piece for piece, _ in Split(Regex(published), "isolated").pre_tokenize_str(text)
    ]


def test_real_text_is_cut_as_tokenizers_does(books: list[bytes], web: list[str]):
    for text in [book.decode("utf-8", "replace") for book in books[:2]] + web[:200]:
        assert words(text) == peer_words(text)


@given(
    st.one_of(
        st.binary(),
        texts.map(str.encode),
        st.lists(
            st.sampled_from(
                [
                    b"ab",
                    b" ",
                    b"\xc3",
                    b"\xa9",
                    b"\xff",
                    b"\xf0\x9f",
                    b"\xed\xa0\x80",
                    b"\xe3\x80\x80",
                    b"\xf0\x80\x80\x80",
                    b"1",
                    b"\n",
                    b"'",
                ]
            )
        ).map(b"".join),
    )
)
@settings(deadline=None, max_examples=500)
def test_any_bytes_are_cut_as_the_specification_does(data: bytes):
    cut = scanned_words(data)
    assert b"".join(cut) == data
    assert cut == regex_words(data)


def test_every_pair_of_bytes_and_every_lead_is_cut_as_the_specification_does():
    pairs = [bytes([first, second]) for first in range(256) for second in range(256)]
    for context in (b"a%s1", b" %s", b"!%s\x80\x80!", b"\n%s\x80"):
        data = b"".join(context % pair for pair in pairs)
        assert scanned_words(data) == regex_words(data)


def test_invalid_bytes_are_of_class_other():
    assert scanned_words(b"caf\xc3\xa9 caf\xe9s") == [b"caf\xc3\xa9", b" caf", b"\xe9", b"s"]
    assert scanned_words(b"a \xff\xfe! \xed\xa0\x80") == [b"a", b" \xff\xfe!", b" \xed\xa0\x80"]
    assert scanned_words(b"\xe2\x82") == [b"\xe2\x82"]


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff"])
def test_a_lone_surrogate_gets_one_sentence(text: str):
    with pytest.raises(UserError, match="lone surrogate"):
        to_bytes(text)


MIXED = st.lists(
    st.one_of(
        st.text("ab 1!'\n\u00a0\u3000é東。🙂st"),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.just("é東" * 300),
        st.just(b"\x80" * 600),
    )
)


@given(MIXED, st.integers(1, 20))
@settings(deadline=None)
def test_blocks_have_the_words_of_the_whole(texts: list[str | bytes], size: int):
    data = b"".join(
        text.encode("utf-8", "replace") if isinstance(text, str) else text for text in texts
    )
    parts = [data[start:stop] for start, stop in blocks(data, 0, len(data), size)]
    assert b"".join(parts) == data
    assert [word for part in parts for word in scanned_words(part)] == scanned_words(data)


def test_blocks_of_a_file(tmp_path: Path):
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE.encode() * 50 + b"x" * 5_000 + b" y")
    data = FileBytes(path)
    parts = list(blocks(data, 100, len(data), 500))
    assert [parts[0][0], *(stop for _, stop in parts)] == [
        *(start for start, _ in parts),
        len(data),
    ]
    assert len(parts) > 10
    assert parts == list(blocks(path.read_bytes(), 100, len(data), 500))
    assert data[len(data) - 2 :] == b" y"
    assert max(stop - start for start, stop in parts) > 5_000


@pytest.mark.parametrize(
    "sentence", ["我们都是好朋友，一起去学校。", "ภาษาไทย・", "tab\tand\tnumbers1,2;", "x=1;"]
)
def test_text_without_ascii_spaces_is_cut_into_blocks(sentence: str):
    data = sentence.encode() * 5_000
    assert max(stop - start for start, stop in blocks(data, 0, len(data), 1_000)) <= 1_000 + len(
        sentence.encode()
    )


def test_a_file_that_became_shorter_gets_one_sentence(tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"some text")
    data = FileBytes(path)
    path.write_bytes(b"some")
    with pytest.raises(UserError, match="became shorter while it was read"):
        data[2:9]
