"""The gradient's norm and AdamW over the flat buffers, a block at a time so that any number of threads gives the same sums."""

import numpy as np

from nanoeuler.backend.cpu.vectors import span
from nanoeuler.compiling import FAST_MATH, compiled

BLOCK = 1 << 15
"""Elements whose squares are summed before they join the total."""


@compiled(fastmath=FAST_MATH)
def squares(values):
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


@compiled(fastmath=FAST_MATH)
def add(target, other):
    for i in range(len(target)):
        target[i] += other[i]


@compiled()
def squared_norms(gradients, sums, first, stop):
    """sums[i] = Σ of the squares of block i, in float64 of sums of 1,024, for the blocks `first` … `stop`."""
    for block in range(first, stop):
        sums[block] = 0
        for start in range(block * BLOCK, min((block + 1) * BLOCK, len(gradients)), 1024):
            sums[block] += squares(span(gradients, start, min(1024, len(gradients) - start)))


@compiled(fastmath=FAST_MATH)
def adamw(
    parameters,
    gradients,
    first_moment,
    second_moment,
    kept,
    rate,
    beta1,
    beta2,
    correction,
    epsilon,
    scale,
):
    """`kept` = 1 − rate of decay; `rate` and `correction` hold the bias corrections of both moments."""
    one = np.float32(1)
    for i in range(len(parameters)):
        g = gradients[i] * scale
        m = beta1 * first_moment[i] + (one - beta1) * g
        v = beta2 * second_moment[i] + (one - beta2) * g * g
        first_moment[i], second_moment[i] = m, v
        parameters[i] = parameters[i] * kept - rate * m / (np.sqrt(v * correction) + epsilon)
