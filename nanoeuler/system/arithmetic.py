"""Functions of Python's numbers by additions and multiplications alone.

The C library's have other last bits in other versions, and on other processors.
"""


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
    """cos x for |x| ≤ π, by its series, with an error of about 1e-15."""
    square, total = x * x, 1.0
    for k in range(30, 0, -2):
        total = 1.0 - total * square / (k * (k - 1))
    return total
