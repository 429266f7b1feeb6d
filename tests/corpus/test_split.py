"""The choice of held-out documents, and the cut of a single one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoeuler.corpus.split import check_share, cut_end, last_held_out_position, position, title_key
from nanoeuler.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def last_place(documents, share):
    return last_held_out_position(
        np.array([position(key) for key, _ in documents], np.uint64),
        np.array([size for _, size in documents], np.int64),
        share,
    )


def held_out(documents, share):
    last = last_place(documents, share)
    return {key for key, _ in documents if last is not None and position(key) <= last}


def books(count, size=1000):
    return [(f"book {number}", size) for number in range(count)]


def test_the_place_of_a_key_is_its_sha256_and_never_changes():
    assert position("") == 0xE3B0C44298FC1C14  # of the empty string, as in every table of sha256
    command = [
        sys.executable,
        "-c",
        "from nanoeuler.corpus.split import position; print(position('emma'))",
    ]
    assert {
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in "123"
    } == {f"{position('emma')}\n"}


def test_the_lowest_places_up_to_the_share_of_bytes_are_held_out():
    documents = books(1000)
    lowest = sorted((position(key), key) for key, _ in documents)[:50]
    assert held_out(documents, 0.05) == {key for _, key in lowest}


@pytest.mark.parametrize(("count", "expected"), [(2, 1), (3, 1), (9, 1), (10, 2), (95, 2)])
def test_small_sources_have_held_out_documents_too(count, expected):
    assert len(held_out(books(count), 0.01)) == expected


def test_something_is_always_left_to_train_on():
    assert len(held_out(books(2), 0.5)) == 1
    assert len(held_out([("a", 1), ("b", 1_000_000)], 0.5)) == 1


def test_a_single_key_is_not_parted():
    assert last_place([("emma", 10)], 0.1) is None
    assert last_place([("emma", 10), ("emma", 12)], 0.1) is None
    assert last_place([], 0.1) is None


def test_the_order_of_the_documents_does_not_matter():
    documents = books(200)
    assert held_out(documents, 0.1) == held_out(documents[::-1], 0.1)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(1, 10**9)), min_size=2, max_size=60),
    st.floats(0.001, 0.5),
)
def test_at_most_the_share_is_held_out_unless_that_would_be_too_few(documents, share):
    keys = {key for key, _ in documents}
    out = held_out(documents, share)
    if len(keys) == 1:
        assert not out
        return
    least = 2 if len(keys) >= 10 else 1
    assert least <= len(out) < len(keys)
    total, size = (
        sum(size for _, size in documents),
        sum(size for key, size in documents if key in out),
    )
    assert len(out) == least or size <= share * total * (1 + 1e-9)


def test_adding_documents_moves_none_into_training_while_the_share_has_room():
    few, many = held_out(books(1000), 0.1), held_out(books(2000), 0.1)
    assert len(few - many) < len(few) / 2
    assert all(position(key) > max(map(position, many)) for key in few - many)


@pytest.mark.parametrize(
    "editions",
    [
        [
            "Frankenstein; Or, The Modern Prometheus",
            "Frankenstein, or the Modern Prometheus",
            "Frankenstein",
            "FRANKENSTEIN (1818)",
        ],
        ["Moby Dick; or The Whale", "Moby-Dick, or, The Whale", "MOBY DICK"],
        [
            "The Adventures of Tom Sawyer, Complete",
            "Adventures of Tom Sawyer",
            "The Adventures of Tom Sawyer — Complete",
        ],
        ["Les Misérables", "Les Miserables: Volume I", "LES MISÉRABLES\nComplete in Five Volumes"],
        ["Alice's Adventures in Wonderland", "Alice’s Adventures in Wonderland"],
        ["Don Quixote, Volume 1", "Don Quixote Vol. 2", "Don Quixote - Part One"],
    ],
)
def test_editions_of_a_title_have_one_key(editions):
    assert len({title_key(title) for title in editions}) == 1


def test_different_titles_have_different_keys():
    titles = [
        "Emma",
        "Persuasion",
        "The Time Machine",
        "A Tale of Two Cities",
        "The",
        "1984",
        "Война и мир",
        "The Orchard",
        "Orlando",
    ]
    assert len({title_key(title) for title in titles}) == len(titles)
    assert title_key("") == title_key(" ?! ") == ""


def test_a_text_is_cut_at_the_paragraph_before_its_last_part():
    text = b"".join(
        b"Paragraph %03d has its words.\nAnd a second line.\n\n" % number for number in range(2000)
    )
    cut = cut_end(text, 0.1)
    assert text[:cut].endswith(b"\n\n")
    assert text[cut:].startswith(b"Paragraph 18")
    assert len(text) - cut == pytest.approx(0.1 * len(text), abs=60)


def test_a_short_text_holds_out_a_tenth_and_a_longer_one_enough_to_measure():
    text = b"A line.\n\n" * 500
    assert len(text) - cut_end(text, 0.001) == pytest.approx(len(text) / 10, abs=20)
    text = b"A line.\n\n" * 50_000
    assert len(text) - cut_end(text, 0.001) == pytest.approx(4096, abs=20)


@pytest.mark.parametrize(
    ("text", "border"),
    [
        (b"One line after\nthe other.\n" * 20, b"\n"),
        (b"word " * 100, b" "),
        (b"One.\n\n" + b"A sentence. " * 100, b" "),
    ],
)
def test_without_paragraphs_it_is_cut_at_a_line_or_a_word(text, border):
    assert text[: cut_end(text, 0.1)].endswith(border)


@pytest.mark.parametrize("text", [b"", b"word", b"x" * 1000, b" \n\n word", b"\n\n\n\n"])
def test_a_text_that_cannot_be_cut_says_so(text):
    assert cut_end(text, 0.1) == 0


@given(st.text(min_size=1, max_size=500), st.floats(0.001, 0.5))
def test_a_cut_leaves_words_on_both_sides_and_whole_letters(text, share):
    raw = text.encode("utf-8", "replace")
    if cut := cut_end(raw, share):
        assert raw[:cut].strip()
        assert raw[cut:].strip()
        raw[:cut].decode()
        raw[cut:].decode()


@pytest.mark.parametrize("share", [0, -0.1, 0.6, 1, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(
        UserError, match=r"corpus\.validation_share is .*; it must be above 0 and at most 0\.5"
    ):
        check_share(share)
