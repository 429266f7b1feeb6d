"""Functions of additions and multiplications alone, beside those of the C library."""

import math

import numpy as np
import pytest

from nanoeuler.backend.cpu import functions
from nanoeuler.system import arithmetic

RANDOM = np.random.default_rng(1)
LARGE, POSITIVE = RANDOM.uniform(-700, 700, 2000), np.exp(RANDOM.uniform(-40, 40, 2000))
ANGLES = np.concatenate([np.linspace(-math.pi, math.pi, 999), RANDOM.uniform(0, 1e5, 999)])


@pytest.mark.parametrize(
    ("found", "expected", "numbers"),
    [
        (arithmetic.exp, np.exp, LARGE),
        (arithmetic.log, np.log, POSITIVE),
        (arithmetic.softplus, lambda x: np.logaddexp(0, x), LARGE),
        (functions.exp, np.exp, LARGE),
        (functions.log, np.log, POSITIVE),
    ],
)
def test_they_agree_with_the_c_library(found, expected, numbers):
    values = [found(number) for number in numbers]
    np.testing.assert_allclose(values, expected(numbers), rtol=2e-15)


def test_cosines_and_sines():
    np.testing.assert_allclose(
        [functions.cosine_and_sine(x) for x in ANGLES],
        np.transpose([np.cos(ANGLES), np.sin(ANGLES)]),
        atol=2e-15,
    )
    inside = ANGLES[:999]
    np.testing.assert_allclose([*map(arithmetic.cosine, inside)], np.cos(inside), atol=2e-15)


def test_powers():
    exact = [0.9**n for n in range(200)]
    np.testing.assert_allclose([arithmetic.power(0.9, n) for n in range(200)], exact, rtol=1e-14)


def test_a_small_difference_to_one_keeps_ten_digits():
    numbers = -POSITIVE[POSITIVE < 700]
    found = [functions.expm1(number) for number in numbers]
    np.testing.assert_allclose(found, np.expm1(numbers), rtol=1e-10)


def test_ends_of_the_range():
    assert arithmetic.exp(np.array([-np.inf, -1000.0])).tolist() == [0, 0]
    assert arithmetic.log(0.0) == functions.log(0.0) == -math.inf
    assert math.isnan(arithmetic.exp(math.nan))
    assert math.isnan(functions.log(math.nan))
    assert math.isnan(functions.expm1(math.nan))
