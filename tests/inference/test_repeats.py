"""What followed the last tokens of a text where they stood before."""

import numpy as np

from nanoeuler.backend.reference_drafts import repeated
from nanoeuler.inference.speculation import Repeats


def test_by_hand():
    text = Repeats([1, 2, 3, 4, 1, 2])
    assert text.repeated == 2
    assert text.drafts(5) == [3, 4, 1, 2, 3]  # and on from the first one
    text.extend([3])
    assert (text.repeated, text.drafts(2)) == (3, [4, 1])
    text.extend([9])
    assert (text.repeated, text.drafts(2)) == (0, [])
    assert Repeats([7, 7, 7]).drafts(4) == [7, 7, 7, 7]
    assert Repeats().drafts(3) == Repeats([5]).drafts(3) == Repeats([5, 5]).drafts(3) == []


def test_three_tokens_count_more_than_two_and_late_places_more_than_early_ones():
    assert Repeats([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2]).drafts(1) == [8]
    assert Repeats([5, 1, 2, 8, 6, 1, 2, 9, 7, 1, 2]).drafts(1) == [9]


def test_a_growing_text_finds_what_a_search_finds():
    random = np.random.default_rng(1)
    for letters in (2, 4, 9):
        tokens = random.integers(0, letters, 200).astype(np.int32)
        text = Repeats()
        for end, token in enumerate(tokens.tolist(), 1):
            text.extend([token])
            found = repeated(tokens[:end], 7).tolist()
            assert text.drafts(7) == found
            assert (text.repeated > 0) == (len(found) > 0)
