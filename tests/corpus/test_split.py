"""The choice of held-out documents, and the cut of a single one."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoeuler.corpus.split import (
    check_share,
    choose_stretches,
    last_held_out_position,
    position,
    title_key,
)
from nanoeuler.errors import UserError
from nanoeuler.storage import spilled


def last_place(documents, share):
    return last_held_out_position(
        np.array([position(key) for key, _ in documents], np.uint64),
        np.array([size for _, size in documents], np.int64),
        share,
    )


@pytest.mark.parametrize(("keys", "share"), [(1, 0.1), (2, 0.1), (9, 0.4), (3_000, 0.01)])
def test_the_lowest_positions_are_held_out_up_to_the_share_of_bytes(keys, share, monkeypatch):
    """Also where few of the positions are looked at together, and one document is most of all."""
    monkeypatch.setattr(spilled, "BLOCK", 100)
    random = np.random.default_rng(keys)
    positions = random.integers(0, 2**64, keys, np.uint64)[random.integers(0, keys, 5_000)]
    for sizes in (random.integers(1, 9_000, 5_000), np.where(positions == positions.min(), 99, 1)):
        ordered = np.unique(positions)
        of_keys = [int(sizes[positions == key].sum()) for key in ordered]
        fitting = sum(size <= share * sum(of_keys) for size in itertools.accumulate(of_keys))
        count = max(2 if len(ordered) >= 10 else 1, min(fitting, len(ordered) - 1))
        expected = int(ordered[count - 1]) if len(ordered) > 1 else None
        assert last_held_out_position(positions, sizes, share) == expected


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


def held_out_of(text: bytes, share: float) -> list[bytes]:
    return [text[start:stop] for start, stop in choose_stretches(text, share)]


def test_stretches_of_paragraphs_are_spread_over_a_text():
    text = b"".join(
        b"Paragraph %04d has its words.\nAnd a second line.\n\n" % number for number in range(5000)
    )
    found = held_out_of(text, 0.1)
    assert len(found) == 16
    assert sum(map(len, found)) == pytest.approx(0.1 * len(text), rel=0.02)
    assert all(piece.startswith(b"Paragraph ") and piece.endswith(b"line.\n\n") for piece in found)
    numbers = [int(piece.split()[1]) for piece in found]
    assert [number * 16 // 5000 for number in numbers] == list(range(16))


def test_each_part_of_a_text_has_its_share_of_what_is_held_out():
    """A glossary of short entries has many more places at which a stretch may begin."""
    chapters = b"".join(
        b"Chapter %d. " % n + b"The knight rode on and on. " * 40 + b"\n\n" for n in range(300)
    )
    entries = b"".join(b"ENTRY %d: its meaning.\n\n" % number for number in range(3000))
    of_entries = sum(piece.count(b"ENTRY") for piece in held_out_of(chapters + entries, 0.1))
    share = 3000 * len(b"ENTRY 1000: its meaning.\n\n") / len(chapters + entries)
    held_out = sum(map(len, held_out_of(chapters + entries, 0.1)))
    assert of_entries * 26 / held_out == pytest.approx(share, abs=0.06)


def test_within_one_part_long_paragraphs_have_the_chance_of_their_length():
    starts_in_short = 0
    for number in range(200):
        long = f"The knight {number} rode on. ".encode() * 40 + b"\n\n"
        short = b"".join(b"%d-%d rode.\n\n" % (number, entry) for entry in range(100))
        text = long + short + long
        ((start, _),) = choose_stretches(text, 0.1).tolist()
        starts_in_short += len(long) <= start < len(long + short)
    expected = 200 * len(short) / (len(text) * 0.9)
    assert starts_in_short == pytest.approx(expected, abs=30)  # four standard deviations


def test_a_short_text_holds_out_a_tenth_and_a_longer_one_enough_to_measure():
    held_out = sum(map(len, held_out_of(b"A line.\n\n" * 500, 0.001)))
    assert held_out == pytest.approx(450, abs=20)
    held_out = sum(map(len, held_out_of(b"A line.\n\n" * 50_000, 0.001)))
    assert held_out == pytest.approx(4096, abs=80)


@pytest.mark.parametrize(
    ("text", "border"),
    [
        (b"One line after\nthe other.\n" * 20, b"\n"),
        (b"word " * 100, b" "),
        (b"One.\n\n" + b"A sentence. " * 100, b". "),
        ("一个句子，他说。".encode() * 40, "。".encode()),
        ("صباح الخير۔".encode() * 40, "۔".encode()),
    ],
)
def test_without_paragraphs_a_stretch_ends_with_a_line_a_sentence_or_a_word(text, border):
    (found,) = held_out_of(text, 0.1)
    assert found.endswith(border)


@pytest.mark.parametrize("text", [b"", b"word", b" \n\n word", b"\n\n\n\n" * 100, b"word " * 39])
def test_of_too_short_a_text_nothing_is_held_out(text):
    assert held_out_of(text, 0.1) == []


@given(
    st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=20),
    st.integers(1, 300),
    st.floats(0.001, 0.5),
)
@example(["\r"], 1, 0.5)  # no text at all
def test_stretches_are_apart_with_text_in_and_between_them(units, times, share):
    raw = ("".join(units) * times).encode("utf-8", "replace")
    places = choose_stretches(raw, share)
    if not raw.strip():
        assert len(places) == 0
        return
    borders = [0, *places.ravel().tolist(), len(raw)]
    assert borders == sorted(borders)
    for start, stop in itertools.pairwise(borders):
        raw[start:stop].decode()
        assert raw[start:stop].strip() or not raw[start:stop]
    assert all(start < stop for start, stop in places)
    held_out = int(np.diff(places).sum())
    assert held_out <= 0.8 * len(raw.strip())
    if len(raw.rstrip()) < 200:
        assert held_out == 0
    assert choose_stretches(raw, share).tolist() == places.tolist()


@pytest.mark.parametrize("share", [0, -0.1, 0.6, 1, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(
        UserError, match=r"corpus\.validation_share is .*; it must be above 0 and at most 0\.5"
    ):
        check_share(share)
