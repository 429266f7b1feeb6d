"""Verdicts by a paired t-test that is looked at early."""

import math

import numpy as np
import pytest

from nanoeuler.evaluation.verdicts import verdict_table
from nanoeuler.experiments.verdicts import MOST_SEEDS, judge, share, two_sided_p

TABLE = (
    (1, 0.05, 12.706),
    (1, 0.01, 63.657),
    (2, 0.01, 9.925),
    (3, 0.05, 3.182),
    (4, 0.001, 8.610),
    (9, 0.01, 3.250),
    (30, 0.01, 2.750),
)
"""Student's quantiles, as tables print them: degrees of freedom, two-sided p, t."""


@pytest.mark.parametrize(("degrees", "p", "t"), TABLE)
def test_p_is_that_of_students_tables(degrees, p, t):
    assert two_sided_p(t, degrees) == pytest.approx(p, rel=5e-4)  # as t is rounded there
    assert two_sided_p(-t, degrees) == two_sided_p(t, degrees)


def test_p_of_many_degrees_is_that_of_a_normal_difference():
    assert two_sided_p(2.5, 100_000) == pytest.approx(math.erfc(2.5 / math.sqrt(2)), rel=1e-3)


@pytest.mark.parametrize("planned", [2, 3, 7, 50])
def test_the_looks_spend_the_level_and_no_more(planned):
    shares = [share(seeds, planned, 0.01) for seeds in range(2, planned + 1)]
    assert sum(shares) == pytest.approx(0.01)
    assert min(shares) > 0


@pytest.mark.parametrize(("level", "planned"), [(0.01, 3), (0.05, 3), (0.05, 10)])
def test_false_verdicts_of_changes_that_do_nothing_stay_below_the_level(level, planned):
    """Scores of a pair share what the seed does; their difference is normal, with mean 0."""
    random = np.random.default_rng(7)
    experiments = 2_000
    of_seed = random.normal(0, 1, (experiments, planned, 1))
    scores = 1.2 + 0.003 * of_seed + 0.002 * random.normal(0, 1, (experiments, planned, 2))
    differences = scores[..., 1] - scores[..., 0]
    verdicts = [judge(list(each), planned, level).verdict for each in differences]
    false = sum(verdict != "undecided" for verdict in verdicts) / experiments
    deviation = math.sqrt(level * (1 - level) / experiments)
    assert level / 4 < false < level + 3 * deviation
    better = verdicts.count("better") / experiments
    assert better < level / 2 + 3 * deviation / math.sqrt(2)


def test_a_large_gain_is_found_early_and_later_seeds_do_not_count():
    differences = [-0.0300, -0.0301, -0.0299, -0.0300, 0.5]
    verdict = judge(differences, planned=5, level=0.01)
    assert verdict.verdict == "better"
    assert verdict.seeds == 3
    assert verdict.difference == pytest.approx(-0.03)
    assert judge([-each for each in differences], 5, 0.01).verdict == "worse"


def test_an_undecided_verdict_says_how_many_seeds_would_decide():
    differences = [-0.010, -0.006, -0.014]
    verdict = judge(differences, planned=3, level=0.01)
    assert verdict.verdict == "undecided"
    number = verdict.seeds_to_decide
    assert number is not None
    spread = 0.004 * math.sqrt((number - 1) / number)  # of halves above and below, about
    more = [-0.01 + spread * (-1) ** i for i in range(number)]
    looks = judge([*more[: number - number % 2]], number - number % 2, 0.01)
    assert looks.verdict == "better"
    assert 4 <= number <= 12


def test_no_difference_at_all_is_undecided_for_ever():
    verdict = judge([0.0, 0.0, 0.0], 3, 0.05)
    assert (verdict.verdict, verdict.p, verdict.seeds_to_decide) == ("undecided", 1.0, None)
    assert judge([1e-6, -1e-3, 1e-3], 3, 0.05).seeds_to_decide is None, MOST_SEEDS


def test_a_single_seed_tells_nothing():
    assert judge([-0.5], 3, 0.01).verdict == "undecided"
    assert judge([], 3, 0.01).p is None


def test_changes_that_are_too_long_for_a_narrow_terminal_are_still_told_apart():
    arm = {"bits_per_byte": [2.0, 2.0], "seeds": 2, "difference": -0.5, "standard_error": 0.01}
    arm |= {"p": 1e-3, "verdict": "better", "seeds_to_decide": None}
    titles = [f"pretrain.learning_rate={rate}" for rate in ("2e-3", "4e-3")]
    told = {"arms": [{"bits_per_byte": [2.5]}, *(arm | {"title": title} for title in titles)]}
    wide, narrow = (verdict_table(told, width).splitlines() for width in (100, 64))
    assert [line.split()[0] for line in wide[1:]] == ["base", *(t[9:] for t in titles)]
    assert narrow[2::2] == [title[9:] for title in titles]
    assert {line.split()[-1] for line in narrow[3::2]} == {"better"}
    assert max(map(len, narrow)) <= 64
