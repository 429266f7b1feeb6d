"""Streams of ids become text without ever showing half a character."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import PROSE

from nanoeuler.tokenizer import StreamDecoder, Tokenizer
from nanoeuler.tokenizer.vocabulary import BYTE_ORDER

id_of_byte = [16 + BYTE_ORDER.index(byte) for byte in range(256)]


def test_half_a_character_is_held_back(tokenizer: Tokenizer):
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push(id_of_byte[byte]) for byte in "a€😀".encode()] == [
        "a",
        "",
        "",
        "€",
        "",
        "",
        "",
        "😀",
    ]
    assert decoder.flush() == ""


def test_flush_shows_what_never_became_whole_and_starts_afresh(tokenizer: Tokenizer):
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push(id_of_byte[byte]) for byte in b"\xe2\x82"] == ["", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.push(id_of_byte[ord("b")]) == "b"


def test_prose_is_never_shown_with_a_replacement_character(tokenizer: Tokenizer):
    decoder = StreamDecoder(tokenizer)
    parts = [decoder.push(index) for index in tokenizer.encode(PROSE)]
    assert "".join(parts) == PROSE
    assert "\ufffd" not in "".join(parts)


@given(st.lists(st.integers(0, 280), max_size=40))
@settings(deadline=None)
def test_parts_join_to_the_whole(tokenizer: Tokenizer, ids: list[int]):
    decoder = StreamDecoder(tokenizer)
    begin, end = tokenizer.call_ids
    shown, in_call = [], False
    for id in ids:
        if id in (begin, end):
            in_call = id == begin
        elif not in_call:
            shown.append(id)
    parts = "".join([decoder.push(index) for index in ids]) + decoder.flush()
    assert parts == tokenizer.decode(shown)


def test_a_call_of_the_calculator_is_not_shown(tokenizer: Tokenizer):
    begin, end = tokenizer.call_ids
    ids = [*tokenizer.encode("a "), begin, *tokenizer.encode("6*7"), end, *tokenizer.encode("42 b")]
    for cut in range(len(ids) + 1):
        decoder = StreamDecoder(tokenizer)
        assert decoder.push(*ids[:cut]) + decoder.push(*ids[cut:]) + decoder.flush() == "a 42 b"


@given(st.text())
@settings(deadline=None)
def test_what_was_shown_is_always_the_beginning_of_the_text(tokenizer: Tokenizer, text: str):
    """Texts are cut where tokens end: within words, characters and emoji sequences."""
    decoder = StreamDecoder(tokenizer)
    shown = ""
    for index in tokenizer.encode(text):
        shown += decoder.push(index)
        assert text.startswith(shown)
    assert shown == text
    assert decoder.flush() == ""
