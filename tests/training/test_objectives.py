"""The losses of the stages, by hand: one pair of replies whose numbers a person can follow."""

import math

import numpy as np
import pytest

from nanoeuler.backend.records import PreferencePairs
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.training.objectives import KnownWeights
from nanoeuler.training.streams import StepRows


def weighed(margin, smoothing, scales, reference=(-1.0, -2.0)):
    """The weights of two chosen and three rejected tokens, and the loss."""
    logprobs = np.log(np.array([0.9, 0.5, 0.25, 0.5, 0.5, 0.125])).reshape(1, 6, 1)
    weights, losses = np.zeros((1, 6, 1)), np.zeros(2)
    pairs = PreferencePairs(
        np.array([[[1, 3, 6]]], np.int32),
        np.array([[reference]]),
        np.array([[scales]]),
        np.array([[0.5]]),
    )
    ops = ReferenceBackend(np.float64)
    ops.preference(logprobs, pairs, margin, smoothing, weights, losses)
    assert losses[0] == losses[1]
    return weights[0, :, 0], losses[0]


def test_a_pair_s_loss_is_its_formula():
    """log σ of what the chosen reply (1/8) gained over the rejected one (1/32), less a margin."""
    margin, smoothing, scales = 0.3, 0.1, (2.0, 0.5)
    chosen = 2.0 * (math.log(1 / 8) - -1.0)
    rejected = 0.5 * (math.log(1 / 32) - -2.0)
    right = 1 / (1 + math.exp(-(chosen - rejected - margin)))
    weights, loss = weighed(margin, smoothing, scales)
    assert loss == pytest.approx(-0.5 * (0.9 * math.log(right) + 0.1 * math.log(1 - right)))
    pull = 0.5 * (0.9 * (1 - right) - 0.1 * right)
    assert weights.tolist() == pytest.approx([0, *2 * [2.0 * pull], *3 * [-0.5 * pull]])


def test_a_chosen_reply_that_gained_more_is_pulled_less():
    """And no rejected one is pushed further than its chosen one is pulled."""
    behind, ahead = (weighed(0.0, 0.0, (1.0, 1.0), (r, -3.0)) for r in (-0.5, -5.0))
    assert 0 < ahead[0][1] < behind[0][1]
    assert ahead[1] < math.log(2) / 2 < behind[1]
    assert behind[0][3] == -behind[0][1]


def test_the_first_head_s_loss_is_a_mean_over_its_own_targets():
    weights = np.array([[[0.3, 0.1], [0.3, 0.1]], [[0.2, 0.0], [0.0, 0.0]]], np.float32)
    ids = np.zeros((2, 2), np.int32)
    rows = StepRows(ids, ids, ids, np.zeros((2, 2, 2), np.int32), weights)
    assert KnownWeights().first_head_weight(rows) == pytest.approx(0.8)
    losses, logprobs = np.zeros(2), -np.ones((4, 2), np.float32)
    ReferenceBackend().add_losses(logprobs, weights.reshape(4, 2), losses)
    assert losses.tolist() == pytest.approx([1.0, 0.8])
