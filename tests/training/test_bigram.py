"""The bigram floor against a direct count."""

import itertools
import math

import numpy as np
import pytest

from nanoeuler.training.bigram import STRENGTHS, bigram_bits_per_byte


def test_it_equals_a_bigram_model_counted_by_hand():
    random = np.random.default_rng(1)
    train, held_out = random.integers(0, 7, 500), random.integers(0, 7, 60)
    pairs, tokens = np.zeros((7, 7)), np.bincount(train, minlength=7)
    for first, second in itertools.pairwise(train):
        pairs[first, second] += 1
    unigram = (tokens + 1) / (len(train) + 7)

    def bits(strength):
        following = [*held_out[1:], 0]
        return (
            -sum(
                math.log2((pairs[a, b] + strength * unigram[b]) / (tokens[a] + strength))
                for a, b in zip(held_out, following, strict=True)
            )
            / 123
        )

    assert bigram_bits_per_byte(train, {"x": (held_out, 123)}, 7, 0)["x"] == pytest.approx(
        min(map(bits, STRENGTHS))
    )


def test_text_that_repeats_a_pair_is_nearly_free():
    train = np.tile([1, 2], 1000)
    assert bigram_bits_per_byte(train, {"x": (train[:100], 100)}, 4, 1)["x"] < 0.01
