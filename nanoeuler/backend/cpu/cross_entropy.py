"""Cross-entropy of R rows of logits, forward and backward; a target of −1 has no loss and no gradient."""

import math

import numpy as np

from nanoeuler.backend.cpu.simd import LANES, exp, exponentials, largest
from nanoeuler.backend.cpu.vectors import fill, line
from nanoeuler.compiling import FAST_MATH, compiled

SUMMED = 1024
"""Exponentials whose sum joins the total: a sum of sums loses less to rounding than one long one."""


@compiled(fastmath=FAST_MATH)
def sum_of_exponentials(row, top):
    total = np.float32(0)
    for v in range(len(row)):
        total += exp(row[v] - top)
    return total


@compiled()
def cross_entropy(logits_RV, targets_R, logprobs_R, lse_R, first, stop):
    for r in range(first, stop):
        row = line(logits_RV, r)
        top = largest(row, 0, len(row))
        lse_R[r] = top + np.float32(math.log(sum_of_exponentials(row, top)))
        logprobs_R[r] = row[targets_R[r]] - lse_R[r] if targets_R[r] >= 0 else np.float32(0)


@compiled()
def replace_by_exponentials(row, top):
    """row ← exp(row − top); returns their sum."""
    total, whole = np.float32(0), len(row) // LANES * LANES
    for start in range(0, whole, SUMMED):
        total += exponentials(row, start, 0, min(SUMMED, whole - start), top, 0, top)
    for v in range(whole, len(row)):
        row[v] = exp(row[v] - top)
        total += row[v]
    return total


@compiled(fastmath=FAST_MATH)
def to_gradient(row, factor, target, weight, logprob):
    """weight · (softmax − one-hot of the target) from exponentials that times `factor` are weight · softmax."""
    for v in range(len(row)):
        row[v] *= factor
    row[target] = weight * np.float32(
        math.expm1(logprob)
    )  # p − 1 without losing digits when p is close to 1


@compiled()
def cross_entropy_with_gradient(logits_RV, targets_R, weights_R, logprobs_R, lse_R, first, stop):
    """Both in one pass over the logits: a row's exponentials take its place, then its gradient does."""
    for r in range(first, stop):
        row, target = line(logits_RV, r), targets_R[r]
        top = largest(row, 0, len(row))
        logit = row[target] if target >= 0 else top
        total = replace_by_exponentials(row, top)
        lse_R[r] = top + np.float32(math.log(total))
        if target < 0:
            logprobs_R[r] = 0
            fill(row, np.float32(0))
        else:
            logprobs_R[r] = logit - lse_R[r]
            to_gradient(
                row,
                np.float32(weights_R[r]) / total,
                target,
                np.float32(weights_R[r]),
                logprobs_R[r],
            )


@compiled()
def cross_entropy_backward(logits_RV, targets_R, weights_R, lse_R, first, stop):
    for r in range(first, stop):
        row, target, weight = line(logits_RV, r), targets_R[r], np.float32(weights_R[r])
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
