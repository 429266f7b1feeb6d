"""`sampling.sample` on float32 logits, compiled, and without sorting the vocabulary.

Tokens fall into buckets of similar logits. The bucket that a limit falls into is found by the
buckets' sums, and only its tokens are sorted. The sums are rounded otherwise than in
`sampling.draw`. So wherever a limit is within MARGIN of a token's edge, nothing is sampled here and
`draw` decides: the choices of both are always the same.
"""

import math

import numpy as np

from nanoeuler.system.compiling import compiled

UNDECIDED = -1
"""Stands for the token of a row that is left to `sampling.draw`."""
MARGIN = 1e-10
"""Share of the total weight that sums may be off by: far above the rounding of 10⁶ float64."""
BUCKETS = 1024
RANGE = 40.0
"""Most logits, over temperature, that the buckets cover; tokens below have 10⁻¹⁷ of the first's
weight and share the last bucket."""
MOST_SORTED = 4096
"""Largest bucket that is sorted here: insertion takes the square of its size."""
LEAST_TEMPERATURE = 1e-30

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11 = (1 / math.factorial(n) for n in range(2, 12))
LOWEST = -700.0
ONE_BITS, EXPONENT = np.int64(1023), np.int64(52)


@compiled()
def exp(x):
    """exp(x) for x ≤ 0 to 14 digits, in a form that is vectorised; at least exp(−700)."""
    x = LOWEST if x < LOWEST else x
    n = np.floor(x * LOG2_E + 0.5)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    series = C7 + r * (C8 + r * (C9 + r * (C10 + r * C11)))
    series = 1.0 + r * (1.0 + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * series))))))
    return series * np.int64((np.int64(n) + ONE_BITS) << EXPONENT).view(np.float64)


@compiled()
def sorted_bucket(bucket, buckets_V, logits_V, ids):
    """Put the tokens of a bucket into `ids`, likeliest first, ties by id. Returns their number."""
    count = 0
    for token in range(len(buckets_V)):
        if buckets_V[token] == bucket:
            at = count
            while at > 0 and logits_V[ids[at - 1]] < logits_V[token]:
                ids[at] = ids[at - 1]
                at -= 1
            ids[at] = token
            count += 1
            if count == MOST_SORTED:
                return 0
    return count


@compiled()
def bucket_at(limit, sums):
    """The bucket that a limit falls into, and the sum of those before it."""
    before = sums[0] * 0
    for bucket in range(BUCKETS):
        if before + sums[bucket] > limit:
            return bucket, before
        before += sums[bucket]
    return BUCKETS, before


@compiled()
def pick(logits_V, allowed_V, temperature, top_k, top_p, draw, scratch):
    """The token that `sampling.sample` takes for one row, or UNDECIDED."""
    weights_V, buckets_V, sums, counts, ids = scratch
    V = len(logits_V)
    top, bottom, finite = np.float32(-np.inf), np.float32(np.inf), True
    for token in range(V):
        logit = logits_V[token]
        finite &= (logit < np.inf) | (not allowed_V[token])  # false for a NaN
        top = logit if allowed_V[token] & (logit > top) else top
        bottom = logit if allowed_V[token] & (logit < bottom) else bottom
    if not (finite and top > -np.inf):
        return UNDECIDED
    if temperature == 0:
        for token in range(V):
            if allowed_V[token] and logits_V[token] == top:
                return token
    if temperature < LEAST_TEMPERATURE:
        return UNDECIDED
    scale = 1 / temperature
    covered = min((np.float64(top) - np.float64(bottom)) * scale, RANGE)
    buckets_a_unit = (BUCKETS - 1) / covered if covered > 0 else 0.0
    for token in range(V):
        below = min((np.float64(top) - np.float64(logits_V[token])) * scale, -LOWEST)
        weights_V[token] = exp(-below) if allowed_V[token] else 0.0
        bucket = np.int32(min(below, covered) * buckets_a_unit)
        buckets_V[token] = bucket if allowed_V[token] else BUCKETS
    sums[:] = 0
    counts[:] = 0
    for token in range(V):
        sums[buckets_V[token]] += weights_V[token]
        counts[buckets_V[token]] += 1
    sums[BUCKETS] = 0
    total = sums.sum()
    margin = MARGIN * total
    if 0 < top_k < V:
        bucket, before = bucket_at(top_k - 1, counts)
        if bucket < BUCKETS:
            if sorted_bucket(bucket, buckets_V, logits_V, ids) == 0:
                return UNDECIDED
            total = sums[:bucket].sum()
            for rank in range(top_k - before):
                total += weights_V[ids[rank]]
    if top_p < 1:
        # the last token that is kept is the first whose weight, with all before it, reaches p
        limit = top_p * total
        bucket, likelier = bucket_at(limit, sums)
        if bucket == BUCKETS:
            return UNDECIDED
        tokens = sorted_bucket(bucket, buckets_V, logits_V, ids)
        rank = 0
        while rank < tokens and likelier + weights_V[ids[rank]] < limit:
            likelier += weights_V[ids[rank]]
            rank += 1
        if rank == tokens:
            return UNDECIDED
        total = likelier + weights_V[ids[rank]]
        if limit - likelier < margin or total - limit < margin:
            return UNDECIDED
    limit = draw * total
    bucket, cumulative = bucket_at(limit, sums)
    if bucket == BUCKETS:
        return UNDECIDED
    tokens = sorted_bucket(bucket, buckets_V, logits_V, ids)
    for rank in range(tokens):
        likelier = cumulative
        cumulative += weights_V[ids[rank]]
        if cumulative > limit:
            near = limit - likelier < margin and likelier > 0
            return UNDECIDED if near or cumulative - limit < margin else ids[rank]
    return UNDECIDED


@compiled()
def pick_rows(logits_BV, allowed_BV, settings_B3, draws_B, sampled_B):
    """`pick` for every row, by its temperature, top-k and top-p; `allowed_BV` has 1 row or B."""
    B, V = logits_BV.shape
    weights_V, buckets_V = np.empty(V), np.empty(V, np.int32)
    sums, counts = np.empty(BUCKETS + 1), np.empty(BUCKETS + 1, np.int64)
    scratch = weights_V, buckets_V, sums, counts, np.empty(min(V, MOST_SORTED), np.int64)
    for b in range(B):
        temperature, top_k, top_p = settings_B3[b]
        settings = temperature, np.int64(top_k), top_p
        allowed_V = allowed_BV[b % len(allowed_BV)]
        sampled_B[b] = pick(logits_BV[b], allowed_V, *settings, draws_B[b], scratch)
