"""Bytes become clean Unicode, whatever wrote them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoeuler.corpus.decode import decode

PROSE = "Zoë’s café — “naïve” price: £5, œuvre"


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (PROSE.encode("utf-8"), "utf-8"),
        (PROSE.encode("utf-8-sig"), "utf-8"),
        (b"\xef\xbb\xbf" + PROSE.encode("utf-8-sig"), "utf-8"),  # two marks
        (PROSE.encode("utf-16"), "utf-16"),
        (PROSE.encode("cp1252"), "cp1252"),
        (PROSE.encode("utf-8").decode("latin-1").encode("utf-8"), "utf-8 twice"),
        (b"\xef\xbb\xbf" + PROSE.encode("utf-8").decode("latin-1").encode("utf-8"), "utf-8 twice"),
    ],
)
def test_each_encoding_gives_the_same_text(raw, encoding):
    decoded = decode(raw)
    assert (decoded.text, decoded.encoding, decoded.unreadable) == (PROSE, encoding, 0)


def test_utf_8_taken_for_windows_1252_and_encoded_again_is_mended():
    garbled = "it’s “late”".encode().decode("cp1252", "surrogateescape")
    garbled = garbled.replace("\udc9d", "\x9d")  # the byte that Windows-1252 leaves undefined
    assert decode(garbled.encode("utf-8")).text == "it’s “late”"


def test_real_text_with_unusual_letters_is_not_taken_for_garbled():
    for text in ("Â", "Ã", "façade", "“quoted”", "smørrebrød", "Привет", "日本語", "naïve â"):
        assert decode(text.encode("utf-8")).text == text


def test_a_few_broken_bytes_do_not_turn_utf_8_into_something_else():
    raw = ("“word” " * 100).encode("utf-8") + b"\xff\x80 end"
    decoded = decode(raw)
    assert decoded.encoding == "utf-8"
    assert decoded.text.startswith("“word” “word”")
    assert decoded.unreadable == decoded.text.count("\ufffd") == 2


def test_bytes_that_windows_1252_leaves_undefined_are_counted():
    decoded = decode(b"caf\xe9 \x81\x8d\x8f\x90\x9d end")
    assert (decoded.text, decoded.encoding, decoded.unreadable) == (
        "café \ufffd\ufffd\ufffd\ufffd\ufffd end",
        "cp1252",
        5,
    )


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n", "\r\r\n"])
def test_line_ends_become_line_feeds(ends):
    assert decode(f"one{ends}two{ends}".encode()).text == "one\ntwo\n"
    assert decode(f"one{ends}{ends}two".encode()).text == "one\n\ntwo"


def test_control_characters_go_and_page_breaks_become_line_ends():
    assert decode(b"a\0b\x07c\x1a\td\x0ce\x7f").text == "abc\td\ne"
    # Windows-1252 that was read as Latin-1
    assert decode("a\x86b\x93c\x94".encode()).text == "a†b“c”"


@given(st.binary())
def test_it_never_raises_and_leaves_no_control_characters(raw):
    text = decode(raw).text
    assert not any(letter < " " and letter not in "\t\n" for letter in text)
    text.encode("utf-8", "strict")


@given(
    st.text(
        st.characters(min_codepoint=0xA0, exclude_categories=["Cs"], exclude_characters="\ufeff")
        | st.sampled_from("\t\nabc ,.")
    )
)
def test_valid_utf_8_comes_back_unless_it_reads_as_doubly_encoded(text):
    decoded = decode(text.encode("utf-8"))
    assert decoded.text == text or decoded.encoding == "utf-8 twice"
