"""Kernels of training alone: cross-entropy of R rows of logits, the gradient's norm, and AdamW.

A target of −1 has no loss and no gradient. The norm is summed by blocks of a fixed size, so that
any number of threads gives the same bits.
"""

import numpy as np

from nanoeuler.backend.cpu.functions import expm1, log
from nanoeuler.backend.cpu.simd import LANES, exp, exponentials, largest
from nanoeuler.backend.cpu.vector_maps import sum_of_exponentials
from nanoeuler.backend.cpu.vectors import dot, fill, row_of, span
from nanoeuler.system.compiling import compiled

PARTIAL_SUM = 1024
"""Exponentials, or squares, that are summed in float32 before they are added to the total, which
loses less to rounding than one long sum."""
BLOCK = 1 << 15
"""Elements whose squares are summed before they are added to the total."""


@compiled()
def cross_entropy(logits_RV, targets_R, logprobs_R, lse_R, first, stop):
    for r in range(first, stop):
        row = row_of(logits_RV, r)
        top = largest(row, 0, len(row))
        lse_R[r] = top + np.float32(log(sum_of_exponentials(len(row), (), (row,), top)))
        logprobs_R[r] = row[targets_R[r]] - lse_R[r] if targets_R[r] >= 0 else np.float32(0)


@compiled()
def replace_by_exponentials(row, top):
    """row ← exp(row − top); returns their sum."""
    total = np.float32(0)
    whole = len(row) // LANES * LANES
    for start in range(0, whole, PARTIAL_SUM):
        total += exponentials(row, start, 0, min(PARTIAL_SUM, whole - start), top, 0, top)
    for v in range(whole, len(row)):
        row[v] = exp(row[v] - top)
        total += row[v]
    return total


@compiled()
def to_gradient(row, factor, target, weight, logprob):
    """row ← weight · (softmax − one-hot of the target); factor · row is weight · softmax."""
    for v in range(len(row)):
        row[v] *= factor
    # p − 1, which loses no digits where p is close to 1
    row[target] = weight * np.float32(expm1(logprob))


@compiled()
def cross_entropy_with_gradient(logits_RV, targets_R, weights_R, logprobs_R, lse_R, first, stop):
    """Both in one pass: a row's exponentials overwrite its logits, and its gradient those."""
    for r in range(first, stop):
        row = row_of(logits_RV, r)
        target = targets_R[r]
        top = largest(row, 0, len(row))
        logit = row[target] if target >= 0 else top
        total = replace_by_exponentials(row, top)
        lse_R[r] = top + np.float32(log(total))
        if target < 0:
            logprobs_R[r] = 0
            fill(row, np.float32(0))
        else:
            weight = np.float32(weights_R[r])
            logprobs_R[r] = logit - lse_R[r]
            to_gradient(row, weight / total, target, weight, logprobs_R[r])


@compiled()
def cross_entropy_backward(logits_RV, targets_R, weights_R, lse_R, first, stop):
    for r in range(first, stop):
        row = row_of(logits_RV, r)
        target = targets_R[r]
        weight = np.float32(weights_R[r])
        if target < 0 or weight == 0:
            fill(row, np.float32(0))
        else:
            logprob = row[target] - lse_R[r]
            replace_by_exponentials(row, lse_R[r])
            to_gradient(row, weight, target, weight, logprob)


@compiled()
def add_losses(logprobs_NK, weights_NK, losses_2):
    for n in range(len(logprobs_NK)):
        for k in range(logprobs_NK.shape[1]):
            nats = np.float64(logprobs_NK[n, k]) * weights_NK[n, k]
            losses_2[0] -= nats
            if k == 0:
                losses_2[1] -= nats


@compiled()
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
            part = span(gradients, start, count)
            sums[block] += dot(part, part)


@compiled()
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
