"""Which held-out measurement is the best, whatever the scores are."""

import json
import math

import pytest

from nanoeuler.training.measurements import Measurements


@pytest.mark.parametrize(
    ("scores", "best", "worse"),
    [
        ([3, 2, 1], 3, 0),
        ([3, 1, 1, 2], 2, 2),
        ([math.nan, 3], 2, 0),
        ([3, math.nan, math.nan], 1, 2),
        ([math.nan, math.inf], 1, 1),
    ],
)
def test_the_lowest_score_is_the_best_and_any_number_beats_nan(scores, best, worse):
    measurements = Measurements()
    for step, score in enumerate(scores, 1):
        measurements.add(step, score)
        restored = Measurements.restored(json.loads(json.dumps(measurements.saved)), range(9))
        assert restored == measurements
    assert (measurements.best_step, measurements.worse) == (best, worse)
    assert measurements.last == len(scores)


def test_a_best_whose_checkpoint_is_gone_counts_no_more():
    measurements = Measurements()
    measurements.add(4, 1.5)
    restored = Measurements.restored(measurements.saved, {2, 6})
    assert (restored.best_step, restored.last) == (None, 4)
    restored.add(6, 1.7)
    assert restored.best_step == 6


@pytest.mark.parametrize(
    ("scores", "worse"),
    [([3, 2], False), ([2, 2.01], False), ([2, 2.03], True), ([2, 9, 2.01], False), ([], False)],
)
def test_an_end_is_worse_than_the_best_if_one_would_notice(scores, worse):
    measurements = Measurements()
    for step, score in enumerate(scores, 1):
        measurements.add(step, score)
    assert measurements.ended_worse == worse
