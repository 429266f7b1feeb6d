"""Is a difference between two ways of training real? A paired t-test by seeds, looked at early.

The scores of two arms with the same seed are a pair: their difference varies less than either, and
is taken to be normal. After each seed from the second on, the verdict falls if p is at most the
share of the level that this look may spend. The shares sum to the level, so that by Bonferroni's
inequality the chance of a false verdict in all looks together is at most the level, however much
they have in common. The level that n of N planned seeds have spent is level · (n / N)³, the power
family of Kim & DeMets (1987, Biometrika 74, section 3) of Lan & DeMets' spending functions (1983,
Biometrika 70): most of it is left for the last look, where the test has the most power.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

POWER = 3
MOST_SEEDS = 1_000
"""Seeds beyond which nobody is told how many would decide."""


@dataclass(frozen=True)
class Verdict:
    """What the differences of an arm to the base, in bits per byte, say after `seeds` seeds."""

    verdict: Literal["better", "worse", "undecided"]
    seeds: int
    difference: float | None = None  # the mean; below 0 is better
    standard_error: float | None = None
    p: float | None = None
    seeds_to_decide: int | None = None
    """Seeds with which an experiment would decide if mean and spread stay; None where the verdict
    has fallen, and where `MOST_SEEDS` would not do."""


def judge(differences: Sequence[float], planned: int, level: float) -> Verdict:
    """The verdict by the differences of one seed after another, which falls at the first look that
    decides: those behind it do not count. `planned` is the number of seeds at the last look."""
    found = Verdict("undecided", len(differences))
    for seeds in range(2, len(differences) + 1):
        mean = statistics.fmean(differences[:seeds])
        spread = statistics.stdev(differences[:seeds])
        p = p_of(mean, spread, seeds)
        found = Verdict("undecided", seeds, mean, spread / math.sqrt(seeds), p)
        if p <= share(seeds, planned, level):
            return replace(found, verdict="better" if mean < 0 else "worse")
    if found.difference is None:
        return found
    return replace(found, seeds_to_decide=seeds_to_decide(mean, spread, planned, level))


def share(seeds: int, planned: int, level: float) -> float:
    """The part of the level that the look after `seeds` of `planned` seeds spends."""
    before = seeds - 1 if seeds > 2 else 0  # a single pair has no spread, and is no look
    return level * (seeds**POWER - before**POWER) / planned**POWER


def seeds_to_decide(mean: float, spread: float, seeds: int, level: float) -> int | None:
    """The smallest number of seeds, more than `seeds`, whose last look would decide."""

    def decides(number: int) -> bool:
        return p_of(mean, spread, number) <= share(number, number, level)

    if not decides(MOST_SEEDS):
        return None
    return bisect_left(range(MOST_SEEDS), True, seeds + 1, key=decides)


def p_of(mean: float, spread: float, seeds: int) -> float:
    """Two-sided p of a t-test that the mean of so many differences is 0. `spread` is their sample
    standard deviation."""
    if spread == 0:
        return float(mean == 0)
    return two_sided_p(mean / spread * math.sqrt(seeds), seeds - 1)


def two_sided_p(t: float, degrees: int) -> float:
    """P(|T| ≥ |t|) of Student's distribution (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for number in range(2 + odd, degrees + 1, 2):  # a term of the series for each two degrees
        total += term
        term *= (number - 1) / number * cosine**2
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1 - within)
