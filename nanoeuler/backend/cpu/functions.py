"""log, exp, sine and cosine in float64, by additions, multiplications and divisions alone.

Those of a C library, of NumPy and of Intel's SVML have other last bits on other processors, or in
other versions. These round alike everywhere. Their error is below 1e-15 of the result, or of 1 for
sine and cosine.
"""

import math

import numpy as np

from nanoeuler.system.compiling import compiled

# as in system/arithmetic.py, but not from there: kept machine code would outlive a change of it
LOG2_E = 1 / math.log(2)
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705878e-10


@compiled()
def log(x):
    """x = m · 2ⁿ with √½ ≤ m < √2, and log m = 2 artanh((m − 1) / (m + 1)) by its series."""
    if x == 0:
        return -np.inf
    m, n = math.frexp(np.float64(x))
    if m < math.sqrt(0.5):
        m, n = 2 * m, n - 1
    s = (m - 1) / (m + 1)
    square, series = s * s, 0.0
    for k in range(25, 0, -2):
        series = series * square + 1.0 / k
    return n * LN2_HIGH + (n * LN2_LOW + 2 * s * series)


@compiled()
def exp(x):
    """2ⁿ exp(r) with |r| ≤ ln 2 / 2, and exp(r) by its series; x is kept within −700 … 700."""
    x = min(max(np.float64(x), -700.0), 700.0)
    n = math.floor(x * LOG2_E + 0.5)
    r, series = (x - n * LN2_HIGH) - n * LN2_LOW, 1.0
    for k in range(14, 0, -1):
        series = 1.0 + series * r / k
    return math.ldexp(series, n)


@compiled()
def expm1(x):
    """exp(x) − 1, with a relative error below 1e-10."""
    if abs(x) < 1e-5:
        return np.float64(x) * (1 + np.float64(x) / 2)
    return exp(x) - 1


QUARTER_HIGH, QUARTER_MIDDLE, QUARTER_LOW = (
    1.5707963267341256,
    6.077100506303966e-11,
    2.0222662487959506e-21,
)
"""π / 2 in three parts, the first two of 33 bits each."""
TWO_OVER_PI = 2 / math.pi


@compiled()
def cosine_and_sine(x):
    """By their series, of what is left of x between two multiples of π / 2; x is below 10⁶."""
    n = math.floor(x * TWO_OVER_PI + 0.5)
    r = ((x - n * QUARTER_HIGH) - n * QUARTER_MIDDLE) - n * QUARTER_LOW
    square, cosine, sine = r * r, 1.0, 1.0
    for k in range(16, 0, -2):
        cosine = 1.0 - cosine * square / (k * (k - 1))
        sine = 1.0 - sine * square / (k * (k + 1))
    sine *= r
    if n & 1:
        cosine, sine = -sine, cosine
    return (-cosine, -sine) if n & 2 else (cosine, sine)


@compiled()
def frequencies(head_size, theta):
    """θ^(−2i / head_size) for each pair i of a head."""
    found = np.empty((head_size + 1) // 2)
    for i in range(len(found)):
        found[i] = exp(-(2 * i / head_size) * log(theta))
    return found


@compiled()
def rope_table(frequencies_I, factor, cos_PI, sin_PI):
    """Cosines and sines of position · frequency, times `factor`."""
    for p in range(len(cos_PI)):
        for i in range(len(frequencies_I)):
            cosine, sine = cosine_and_sine(p * frequencies_I[i])
            cos_PI[p, i], sin_PI[p, i] = factor * cosine, factor * sine
