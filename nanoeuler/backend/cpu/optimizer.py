"""AdamW over the flat buffers, and the gradient's norm.

The norm is summed by blocks of a fixed size, so that any number of threads gives the same bits.
"""

import numpy as np

from nanoeuler.backend.cpu.vectors import span
from nanoeuler.system.compiling import FAST_MATH, compiled

BLOCK = 1 << 15
"""Elements whose squares are summed before they are added to the total."""
PARTIAL_SUM = 1024
"""Squares that are summed in float32 before they are added to a block's sum."""


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
    """sums[i] = Σ of the squares of block i, in float64, for the blocks `first` … `stop`."""
    for block in range(first, stop):
        sums[block] = 0
        for start in range(block * BLOCK, min((block + 1) * BLOCK, len(gradients)), PARTIAL_SUM):
            count = min(PARTIAL_SUM, len(gradients) - start)
            sums[block] += squares(span(gradients, start, count))


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
    """One update, with the gradients times `scale`.

    `kept` is what weight decay leaves of a parameter. `rate` includes the bias correction of the
    first moment, and `correction` is that of the second.
    """
    one = np.float32(1)
    for i in range(len(parameters)):
        g = gradients[i] * scale
        m = beta1 * first_moment[i] + (one - beta1) * g
        v = beta2 * second_moment[i] + (one - beta2) * g * g
        first_moment[i] = m
        second_moment[i] = v
        parameters[i] = parameters[i] * kept - rate * m / (np.sqrt(v * correction) + epsilon)
