"""Near-duplicates of known similarity are found, other documents are kept."""

import collections
import itertools
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.corpus import near_duplicates
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.near_duplicates import (
    LONGEST_WALK,
    bands_and_rows,
    fill_slots,
    find_near_copies,
    needed_agreement,
    table_size,
)
from nanoeuler.corpus.signatures import HASHES, SHINGLE, orders, sign
from nanoeuler.corpus.survey import find_copies
from nanoeuler.corpus.word_hashes import hash_words
from nanoeuler.storage import spilled


def invented(number: int, words: int) -> list[str]:
    dice = random.Random(number)
    return ["".join(dice.choices("abcdefghijklmnop", k=dice.randint(2, 9))) for _ in range(words)]


def edited(words: list[str], changes: int, number: int) -> list[str]:
    """Replace some of `words`, far apart: each changes `SHINGLE` shingles."""
    changed = list(words)
    for place in (
        np.linspace(SHINGLE, len(words) - SHINGLE - 1, changes).astype(int) if changes else ()
    ):
        changed[place] = f"edit{number}x{place}"
    return changed


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}


def similarity(one: list[str], other: list[str]) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def signatures_of(documents: list[str]) -> np.ndarray:
    batch = Batch.of([document.encode() for document in documents])
    return sign(*hash_words(batch))


def near(
    documents: list[str], threshold: float = 0.8, order: list[int] | None = None
) -> list[bool]:
    ranks = np.array(range(len(documents)) if order is None else order, np.int64)
    found = np.zeros(len(documents), bool)
    with tempfile.TemporaryDirectory() as folder:
        signatures = signatures_of(documents)[ranks]
        found[ranks] = find_near_copies(signatures, threshold, 1, Path(folder))
    return found.tolist()


@pytest.mark.parametrize("changes", [0, 3, 6, 12, 20, 40])
def test_signatures_estimate_the_similarity_without_bias(changes):
    estimates, exact = [], []
    for number in range(60):
        one = invented(number, 400)
        other = edited(one, changes, number)
        signatures = signatures_of([" ".join(one), " ".join(other)])
        estimates.append(((signatures[0] == signatures[1]).mean() - 1 / 256) * 256 / 255)
        exact.append(similarity(one, other))
    errors = np.array(estimates) - exact
    spread = np.sqrt(np.mean(exact) * (1 - np.mean(exact)) / HASHES)  # of one estimate, binomial
    assert abs(errors.mean()) < 4 * spread / np.sqrt(60) + 0.002
    assert errors.std() < 1.4 * spread + 0.002


@pytest.mark.parametrize(
    ("changes", "expected"), [(1, True), (3, True), (16, False), (30, False), (60, False)]
)
def test_copies_above_the_threshold_are_found_and_those_below_kept(changes, expected):
    documents = []
    for number in range(100):
        one = invented(number, 400)
        other = edited(one, changes, number)
        assert (similarity(one, other) > 0.92) if expected else (similarity(one, other) < 0.68)
        documents += [" ".join(one), " ".join(other)]
    assert near(documents) == [False, expected] * 100


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_find_what_is_at_the_threshold_with_99_percent(threshold):
    bands, rows = bands_and_rows(threshold)
    assert bands * rows <= HASHES
    assert threshold == 1 or 1 - (1 - threshold**rows) ** bands >= 0.99
    assert 0 <= HASHES - needed_agreement(threshold) <= HASHES * (1 - threshold)


def test_one_document_of_a_family_stays_and_a_chain_does_not_carry_on():
    # estimates of similarity vary by 0.035: one such family of twenty looks different by chance
    first = invented(2, 400)
    family = [first, edited(first, 2, 1), edited(first, 3, 2)]
    chain = [edited(first, 6, 7)]
    # similar to the one before it, but not to the first
    chain.append([*chain[0][:-30], *invented(9, 30)])
    assert similarity(first, chain[0]) > 0.84
    assert similarity(*chain) > 0.84
    assert similarity(first, chain[1]) < 0.76
    assert near([" ".join(words) for words in [*family, chain[0]]]) == [False, True, True, True]
    assert near([" ".join(first), " ".join(chain[1])]) == [False, False]
    assert not near([" ".join(words) for words in [first, *chain]])[2]


def test_many_different_short_documents_are_all_kept():
    assert sum(near([f"page {number}" for number in range(20_000)])) == 0
    assert sum(near([f"a page with the number {number}" for number in range(20_000)])) == 0


def test_the_order_says_which_one_stays():
    one, other = " ".join(invented(1, 100)), " ".join(invented(2, 100))
    documents = [one, other, one.upper(), other.replace(" ", "\n")]
    assert near(documents) == [False, False, True, True]
    assert near(documents, order=[2, 3, 0, 1]) == [True, True, False, False]
    assert near(documents, order=[3, 0]) == [False] * 4


def test_documents_with_few_words_or_none():
    documents = [
        "",
        "…",
        "!!!",
        "one",
        "ONE.",
        "two",
        "one two three",
        "one two three!",
        "one two four",
        "中文字句子",
        "中文字句子。",
        "中文字句号",
    ]
    assert near(documents) == [
        False,
        False,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_pages_of_one_template_are_kept_and_looked_through_in_bounded_time():
    template = invented(1, 60)
    documents = [" ".join([*template, *invented(number, 60)]) for number in range(3_000)]
    assert sum(near(documents)) == 0


def test_copies_are_what_has_one_identity(tmp_path, monkeypatch):
    def copies(identities: list[int], before: list[bool]) -> list[bool]:
        return find_copies(np.array(identities, np.uint64), np.array(before), tmp_path).tolist()

    assert copies([5, 7, 5, 5, 7, 9], [False] * 6) == [False, False, True, True, True, False]
    assert copies([5, 7, 5], [False, False, True]) == [True, False, False]
    spill(monkeypatch)
    random = np.random.default_rng(1)
    drawn = random.integers(0, 2**64, 1_000, np.uint64)[random.integers(0, 1_000, 3_000)]
    later = random.random(3_000) < 0.5
    order = np.argsort(later, kind="stable")
    firsts = order[np.unique(drawn[order], return_index=True)[1]]
    expected = np.isin(np.arange(3_000), firsts, invert=True)
    assert copies(drawn.tolist(), (~later).tolist()) == expected.tolist()


def test_the_orders_never_change_and_are_all_different():
    factors, summands = orders()
    assert (factors[0], summands[0]) == (2762682091, 2627757809)
    assert (factors % 2 == 1).all()
    assert len(set(zip(factors.tolist(), summands.tolist(), strict=True))) == HASHES


def test_signatures_do_not_depend_on_the_batch():
    documents = [" ".join(invented(number, number)) for number in range(50)]
    together = signatures_of(documents)
    for document, signature in zip(documents, together, strict=True):
        assert (signatures_of([document])[0] == signature).all()
    assert all((one != other).any() for one, other in itertools.pairwise(together))


def spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory hold so little that all is done in many parts."""
    limits = {spilled: {"RUN": 500, "PART": 300, "BLOCK": 70}, near_duplicates: {"RUN": 700}}
    for module, of_module in limits.items():
        for name, limit in of_module.items():
            monkeypatch.setattr(module, name, limit)
    monkeypatch.setattr(near_duplicates, "LINKS", 33_000)


def decided_in_order(signatures: np.ndarray, threshold: float) -> list[bool]:
    """Compare each document with the latest kept ones of each of its slots."""
    bands, rows = bands_and_rows(threshold)
    slots = np.empty((len(signatures), bands), np.uint64)
    for band in range(bands):
        fill_slots(signatures, band * rows, rows, table_size(len(signatures)), slots[:, band])
    kept: dict[tuple[int, int], collections.deque[int]] = collections.defaultdict(
        lambda: collections.deque(maxlen=LONGEST_WALK)
    )
    near = []
    for document, signature in enumerate(signatures):
        of_document = [kept[band, slot] for band, slot in enumerate(slots[document].tolist())]
        others = signatures[sorted({other for of_slot in of_document for other in of_slot})]
        agreement = (others == signature).sum(axis=1).max(initial=0)
        near.append(bool(signature.any() and agreement >= needed_agreement(threshold)))
        if signature.any() and not near[-1]:
            for of_slot in of_document:
                of_slot.append(document)
    return near


@pytest.mark.parametrize("spilling", [False, True])
@pytest.mark.parametrize(("groups", "threshold"), [(1, 0.8), (10, 0.6), (200, 0.8), (2_000, 0.8)])
def test_documents_sorted_on_disk_have_the_fates_of_those_compared_in_their_order(
    groups, threshold, spilling, tmp_path, monkeypatch
):
    """Also in slots that have more documents than a walk compares: pages of a template."""
    random = np.random.default_rng(groups)
    templates = random.integers(0, 256, (groups, HASHES), np.uint8)
    signatures = templates[random.integers(0, groups, 6_000)]
    changed = random.random(signatures.shape) < random.uniform(0, 0.5, (len(signatures), 1))
    signatures[changed] = random.integers(0, 256, int(changed.sum()), np.uint8)
    signatures[::1000] = 0
    if spilling:
        spill(monkeypatch)
    near = find_near_copies(signatures, threshold, 2, tmp_path)
    assert near.tolist() == decided_in_order(signatures, threshold)
    assert 0.1 < near.mean() < 0.99
