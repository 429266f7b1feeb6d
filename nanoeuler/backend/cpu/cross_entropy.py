"""Cross-entropy of R rows of logits, forward and backward; a target of −1 has no loss and no gradient."""

import math

import numpy as np

from nanoeuler.backend.cpu.simd import exp, largest, line
from nanoeuler.compiling import FAST_MATH, compiled


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


@compiled(fastmath=FAST_MATH)
def weighted_softmax(row, lse, weight):
    for v in range(len(row)):
        row[v] = weight * exp(row[v] - lse)


@compiled()
def cross_entropy_backward(logits_RV, targets_R, weights_R, lse_R, first, stop):
    for r in range(first, stop):
        row, target, weight = line(logits_RV, r), targets_R[r], np.float32(weights_R[r])
        if target < 0 or weight == 0:
            row[:] = 0
        else:
            logit = row[target]
            weighted_softmax(row, lse_R[r], weight)
            row[target] = weight * np.float32(math.expm1(logit - lse_R[r]))  # p − 1 without losing digits when p is close to 1


@compiled()
def add_losses(logprobs_NK, weights_NK, losses_2):
    for n in range(len(logprobs_NK)):
        for k in range(logprobs_NK.shape[1]):
            nats = np.float64(logprobs_NK[n, k]) * weights_NK[n, k]
            losses_2[0] -= nats
            if k == 0:
                losses_2[1] -= nats
