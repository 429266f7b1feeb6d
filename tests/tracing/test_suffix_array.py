"""Suffix arrays and matches, compared with sorting and with searching one by one."""

import numpy as np
import pytest

from nanoeuler.tracing.suffix_array import find, longest_matches, suffix_array


def sorted_suffixes(tokens):
    return sorted(range(len(tokens)), key=lambda first: tokens[first:].tolist())


def indexed(ids):
    """Tokens and their suffix array, not to be written, as those that an index maps."""
    tokens = np.array(ids, np.uint16)
    order = suffix_array(tokens)
    for array in (tokens, order):
        array.setflags(write=False)
    return tokens, order


def places(tokens, span):
    """Where `span` stands, by looking at every place."""
    listed, wanted = tokens.tolist(), span.tolist()
    starts = range(len(listed) - len(wanted) + 1)
    return [first for first in starts if listed[first : first + len(wanted)] == wanted]


@pytest.mark.parametrize("ids", [1, 2, 3, 300])
def test_suffixes_are_in_the_order_of_sorting(ids):
    random = np.random.default_rng(ids)
    for length in [0, 1, 2, 3, *random.integers(4, 80, 60)]:
        tokens = random.integers(0, ids, length).astype(np.uint16)
        for text in (tokens, np.tile(tokens, 3), np.concatenate([tokens, tokens[::-1]])):
            assert suffix_array(text).tolist() == sorted_suffixes(text)


def test_a_text_that_repeats_itself_forever_is_sorted_as_any_other():
    tokens = np.tile(np.array([3, 1, 2, 1], np.uint16), 50_000)
    order = suffix_array(tokens)
    starts = {phase: list(range(len(tokens) - 4 + phase, -1, -4)) for phase in range(4)}
    last, *others = starts[3]  # "1", and "1 3 1 2 …", which is behind "1 2 1 3 …"
    assert order.tolist() == [last, *starts[1], *others, *starts[2], *starts[0]]


def test_the_longest_match_from_each_token_and_its_places_are_those_of_a_search_one_by_one():
    random = np.random.default_rng(5)
    for _ in range(60):
        ids = int(random.integers(1, 5))
        tokens, order = indexed(random.integers(0, ids, random.integers(1, 60)))
        query = random.integers(0, ids + 1, 12).astype(np.int32)
        lengths = np.zeros(len(query), np.int64)
        longest_matches(tokens, order, query, lengths)
        for first, length in enumerate(lengths.tolist()):
            assert not length or places(tokens, query[first : first + length])
            too_long = query[first : first + length + 1]
            assert len(too_long) == length or not places(tokens, too_long)
            for size in range(1, len(query) - first + 1):
                span = query[first : first + size]
                low, high = find(tokens, order, span)
                assert sorted(order[low:high].tolist()) == places(tokens, span)


def test_a_match_is_only_raised_so_that_parts_can_be_searched_one_after_another():
    query, lengths = np.array([1, 2, 3, 4], np.int32), np.zeros(4, np.int64)
    for part in ([1, 2, 3], [2, 3, 4, 1]):
        longest_matches(*indexed(part), query, lengths)
    assert lengths.tolist() == [3, 3, 2, 1]
