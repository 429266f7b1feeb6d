"""Functions of float64 numbers by additions, multiplications and divisions alone.

The C library's, and NumPy's, have other last bits in other versions and on other processors. These
round alike everywhere; `exp`, `log` and `softplus` take arrays, too. Errors are below 2e-15 of the
result, or of 1 for `cosine`.
"""

import math

import numpy as np

Array = np.ndarray

LOG2_E = 1 / math.log(2)
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705878e-10
"""ln 2 in two parts, the first with so few bits that its products with small whole numbers are
exact."""
LOWEST, HIGHEST = -708.0, 709.0


def exp(x: Array | float) -> Array:
    """2ⁿ exp(r) with |r| ≤ ln 2 / 2, and exp(r) by its series; 0 below −708, e⁷⁰⁹ at most."""
    x = np.asarray(x, np.float64)
    kept = np.clip(x, LOWEST, HIGHEST)
    n = np.rint(kept * LOG2_E)
    r = (kept - n * LN2_HIGH) - n * LN2_LOW
    series = np.ones(r.shape)
    for k in range(14, 0, -1):
        series = 1 + series * r / k
    whole = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.where(x < LOWEST, 0.0, np.ldexp(series, whole))[()]


def log(x: Array | float) -> Array:
    """x = m · 2ⁿ with √½ ≤ m < √2, and log m = 2 artanh((m − 1) / (m + 1)) by its series."""
    m, n = np.frexp(np.asarray(x, np.float64))
    is_small = m < math.sqrt(0.5)
    m, n = np.where(is_small, 2 * m, m), n - is_small
    s = (m - 1) / (m + 1)
    square, series = s * s, np.zeros_like(s)
    for k in range(25, 0, -2):
        series = series * square + 1 / k
    found = n * LN2_HIGH + (n * LN2_LOW + 2 * s * series)
    return np.where(x == 0, -np.inf, found)[()]


def softplus(x: Array | float) -> Array:
    """log(1 + eˣ), which keeps its digits where it is small."""
    power = exp(-np.abs(x))
    whole = 1 + power
    rest = whole - 1  # of `power`, what the sum has: Kahan's way to log(1 + power)
    near = np.where(rest > 0, log(whole) * power / np.where(rest > 0, rest, 1), power)
    return (np.maximum(x, 0) + near)[()]


def power(base: float, exponent: float) -> float:
    """base ** exponent for a whole exponent of at least 0, by repeated squaring."""
    result, left = 1.0, int(exponent)
    while left:
        if left & 1:
            result *= base
        base *= base
        left >>= 1
    return result


def cosine(x: float) -> float:
    """cos x for |x| ≤ π, by its series."""
    square, total = x * x, 1.0
    for k in range(30, 0, -2):
        total = 1.0 - total * square / (k * (k - 1))
    return total
