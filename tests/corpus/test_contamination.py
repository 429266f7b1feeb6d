"""Training documents that quote held-out text or evaluation sets are found."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler.corpus import batches, contamination
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.contamination import (
    FREQUENT,
    GRAM,
    NONE,
    ONLY_FREQUENT,
    Measured,
    Quotations,
    Runs,
    hash_runs,
    read_evaluation_set,
    runs_of_evaluation_set,
)
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.errors import UserError
from nanoeuler.storage import spilled

WORDS = [
    "all",
    "work",
    "and",
    "no",
    "play",
    "makes",
    "Jack",
    "a",
    "dull",
    "boy",
    "who",
    "never",
    "reads",
    "anything",
    "else",
]


def grams(*texts: str) -> Runs:
    batch = Batch.of([text.encode() for text in texts])
    return hash_runs(*hash_words(batch))


def measure(sets: list[tuple[str, Runs]]) -> Measured:
    with tempfile.TemporaryDirectory() as folder:  # open files stay until nobody looks at them
        return Measured(sets, Path(folder))


def find(measured: Measured, *texts: str) -> list[int]:
    """Return the set that each text quotes, `NONE` where it quotes only frequent runs."""
    batch = Batch.of([text.encode() for text in texts])
    documents, found = measured.find(*hash_words(batch))
    with tempfile.TemporaryDirectory() as folder:
        quotations = Quotations(measured, np.full(len(texts), NONE, np.uint8), Path(folder))
        quotations.add(documents, found, measured.owners[found])
        owners = quotations.owners()
    return np.where(owners == ONLY_FREQUENT, NONE, owners).tolist()


def test_thirteen_words_are_a_quotation_and_twelve_are_not():
    measured = measure([("test", grams(" ".join(WORDS)))])
    for start in range(len(WORDS) - GRAM + 1):
        assert find(
            measured, "It says: " + " ".join(WORDS[start : start + GRAM]) + ", I think."
        ) == [0]
        assert find(
            measured, "It says: " + " ".join(WORDS[start : start + GRAM - 1]) + ", I think."
        ) == [NONE]
    assert find(measured, "“ALL WORK—and no play\nmakes Jack: a dull boy who never reads”") == [0]
    assert find(measured, " ".join(WORDS[:6]) + " x " + " ".join(WORDS[6:])) == [NONE]


def test_a_quotation_does_not_run_over_two_documents():
    measured = measure([("test", grams(" ".join(WORDS[:13])))])
    assert find(measured, " ".join(WORDS[:7]), " ".join(WORDS[7:13])) == [NONE, NONE]
    assert len(grams(" ".join(WORDS[:7]), " ".join(WORDS[7:13])).grams) == 0


def test_a_document_counts_for_the_first_set_that_it_quotes():
    other = "one two three four five six seven eight nine ten eleven twelve thirteen"
    measured = measure(
        [
            ("first", grams(" ".join(WORDS))),
            ("second", grams(other, " ".join(WORDS))),
            ("first", grams("unheard " + other)),
        ]
    )
    assert measured.names == ["first", "second"]
    assert find(
        measured,
        other + " and then " + " ".join(WORDS),
        "twelve " + other,
        "nothing",
        " ".join(WORDS),
        "unheard " + other,
    ) == [0, 0, NONE, 0, 0]


@pytest.mark.parametrize("documents", [1, FREQUENT, FREQUENT + 1, 300])
def test_a_run_of_words_in_more_than_ten_documents_is_no_quotation(documents):
    measured = measure(
        [
            (
                "test",
                grams(
                    " ".join(WORDS[:13])
                    + " and then: "
                    + " ".join(f"rare{number}" for number in range(13))
                ),
            )
        ]
    )
    quoting = [
        f"Number {number}: " + " ".join([*WORDS[:13], "–", *WORDS[:13]])
        for number in range(documents)
    ]
    leak = "Number 1: " + " ".join(f"rare{number}" for number in range(13))
    assert find(measured, leak, *quoting, "nothing") == [
        0,
        *[0 if documents <= FREQUENT else NONE] * documents,
        NONE,
    ]


def test_nothing_to_measure_finds_nothing():
    assert find(measure([]), " ".join(WORDS), "") == [NONE, NONE]
    assert find(measure([("short", grams("too short"))]), "too short", "", "…") == [NONE] * 3


def test_every_quotation_among_many_documents_is_found_and_nothing_else():
    dice = np.random.default_rng(1)
    texts = [
        " ".join(f"w{number}" for number in dice.integers(0, 50_000, 60)) for _ in range(2_000)
    ]
    measured = measure([("held-out text", grams(*texts[:100]))])
    quoting = {number: number % 100 for number in range(150, 2_000, 37)}
    documents = [
        text + (" " + " ".join(texts[quoting[number]].split()[20:33]) if number in quoting else "")
        for number, text in enumerate(texts)
    ][100:]
    found = find(measured, *documents)
    assert {number + 100 for number, owner in enumerate(found) if owner != NONE} == set(quoting)


SPEECH = st.lists(st.sampled_from(["so", "it", "goes"]), max_size=70).map(" ".join)


@given(st.lists(SPEECH, max_size=3), st.lists(SPEECH, max_size=4))
@settings(deadline=None)
def test_the_runs_found_are_those_that_sets_of_runs_have_in_common(measured, texts):
    def runs(text: str) -> set[int]:
        return set(grams(text).grams.tolist())

    sought = measure([("test", grams(*measured))])
    documents, places = sought.find(*hash_words(Batch.of([text.encode() for text in texts])))
    common = [
        (number, run)
        for number, text in enumerate(texts)
        for run in runs(text) & set().union(*map(runs, measured))
    ]
    assert sorted(zip(documents.tolist(), sought.grams[places].tolist(), strict=True)) == sorted(
        common
    )


def test_an_evaluation_set_is_read_item_by_item(tmp_path):
    path = tmp_path / "world.jsonl"
    items = [
        {
            "instruction": "all work and no play makes",
            "input": "Jack a dull boy",
            "answer": "who never reads",
        },
        {"ctx": "x", "endings": ["y z", "w"], "label": 3},
    ]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    (batch,) = read_evaluation_set(path)
    assert [bytes(document).decode() for document in batch.documents()] == [
        "all work and no play makes\nJack a dull boy\nwho never reads",
        "x\ny z\nw",
    ]
    assert find(measure([("world", hash_runs(*hash_words(batch)))]), " ".join(WORDS)) == [0]


def test_an_unreadable_evaluation_set_is_one_sentence(tmp_path):
    with pytest.raises(
        UserError, match=r"none.jsonl: cannot be read \(No such file or directory\); fetch it first"
    ):
        list(read_evaluation_set(tmp_path / "none.jsonl"))
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=r"bad.jsonl: not JSON lines"):
        list(read_evaluation_set(tmp_path / "bad.jsonl"))


def test_runs_sorted_on_disk_piece_by_piece_are_the_same(monkeypatch):
    dice = np.random.Generator(np.random.SFC64(1))
    hashes = dice.integers(0, 2**64, (4, 5_000), np.uint64)
    hashes[:, ::7] = hashes[0, ::7]  # in all sets
    sets = [(name, Runs(grams, grams)) for name, grams in zip("abba", hashes, strict=True)]
    whole = measure(sets)
    for constant in ("RUN", "PART", "BLOCK"):
        monkeypatch.setattr(spilled, constant, 600)
    pieces = measure(sets)
    for name in ("grams", "owners", "starts", "part_filter"):
        assert (getattr(pieces, name) == getattr(whole, name)).all()
    assert (np.unique(hashes) == whole.grams).all()
    first = {
        gram: "abba".index(name) for name, grams in sets[::-1] for gram in grams.grams.tolist()
    }
    assert [first[int(gram)] for gram in whole.grams] == whole.owners.tolist()


@pytest.mark.parametrize("cells", [1, 8, 64])
def test_a_filter_of_few_cells_finds_the_same(cells, monkeypatch):
    """However full it is: memory has a ceiling, whatever is measured."""
    dice = np.random.Generator(np.random.SFC64(2))
    texts = [" ".join(f"w{word}" for word in dice.integers(0, 4_000, 90)) for _ in range(60)]
    quoting = [" ".join(texts[place].split()[place : place + 30]) for place in range(0, 60, 3)]
    hashes, borders = hash_words(Batch.of([text.encode() for text in [*texts[30:], *quoting]]))
    sets = [("one", grams(*texts[:20])), ("two", grams(*texts[15:30]))]
    whole = measure(sets)
    monkeypatch.setattr(contamination, "MOST_CELLS", cells)
    small = measure(sets)
    assert len(small.part_filter) == cells < len(whole.part_filter)
    documents, runs = whole.find(hashes, borders)
    assert len(runs) == 10 * 18
    for one, other in zip(small.find(hashes, borders), (documents, runs), strict=True):
        assert (one == other).all()
    # a filter that has more than the sets serves as well
    part = measure(sets[1:])
    with tempfile.TemporaryDirectory() as folder:
        shared = Measured(sets[1:], Path(folder), whole.part_filter)
    for one, other in zip(shared.find(hashes, borders), part.find(hashes, borders), strict=True):
        assert (one == other).all()


def test_an_evaluation_set_is_read_a_batch_at_a_time(tmp_path, monkeypatch):
    path = tmp_path / "many.jsonl"
    items = [" ".join(WORDS[number:] + WORDS[:number]) for number in range(len(WORDS))]
    path.write_text("".join(json.dumps({"text": item}) + "\n" for item in items))
    monkeypatch.setattr(batches, "SIZE", 100)
    assert len(list(read_evaluation_set(path))) > 3
    for one, other in zip(runs_of_evaluation_set(path, tmp_path), grams(*items), strict=True):
        assert (one == other).all()


def test_more_sets_than_can_be_told_apart_are_one_sentence():
    with pytest.raises(UserError, match="evaluate: 255 tasks and files of questions are more than"):
        measure([(f"task {number}", grams("x")) for number in range(255)])
