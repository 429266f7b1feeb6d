"""Causal attention by tiles with an online softmax (Dao et al. 2022, algorithm 1; Milakov & Gimelshein 2018): no T × T array exists.

A block of QUERIES queries meets tiles of KEYS keys. Of each row the largest score so far, the sum of exponentials and the
weighted sum of values are kept, and rescaled when a larger score turns up. The backward pass computes the probabilities of a
tile again from the saved log-sum-exp.

The work is a list of pairs (row of the batch, key/value head), so that the keys and values of a pair are laid out once for all
query heads that share them: keys transposed, since a product's right side is read along its rows. Names and shapes are those of
`backend/reference.py`; `work` is room of `work_floats` floats, whose contents mean nothing.
"""

import math

import numpy as np

from nanoeuler.backend.cpu.simd import COLUMNS, add_product, exp, largest, set_product
from nanoeuler.compiling import FAST_MATH, compiled

QUERIES, KEYS = 32, 128
"""Of a tile: 16 kB of scores, which stay in the first-level cache."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def work_floats(keys: int, head_size: int) -> int:
    """Floats of room that the kernels below need for rows of `keys` keys."""
    width = round_up(head_size, COLUMNS)
    return 5 * (keys + COLUMNS) * width + 2 * QUERIES * KEYS + 3 * QUERIES * width + 2 * QUERIES


@compiled()
def pack(x_SE, first, stop, factor, work, at, width):
    """Rows first … stop of `x`, times `factor`, to rows of `width` floats at `at`; the columns beyond are zero."""
    E = x_SE.shape[1]
    for s in range(first, stop):
        row = work[at + s * width : at + (s + 1) * width]
        for e in range(E):
            row[e] = x_SE[s, e] * factor
        for e in range(E, width):
            row[e] = 0


@compiled()
def pack_transposed(x_SE, first, stop, work, at, stride):
    """Rows first … stop of `x` to columns of the rows of `stride` floats at `at`."""
    for s in range(first, stop):
        for e in range(x_SE.shape[1]):
            work[at + e * stride + s] = x_SE[s, e]


@compiled(fastmath=FAST_MATH)
def exponentials(row, top):
    """row = exp(row − top); returns their sum."""
    total = np.float32(0)
    for j in range(len(row)):
        row[j] = exp(row[j] - top)
        total += row[j]
    return total


@compiled()
def attention(query_BTHE, key_BSGE, value_BSGE, starts_BT, offset_B, out_BTHE, lse_BHT, work, first_pair, stop_pair):
    T, H, E = query_BTHE.shape[1:]
    S, G = key_BSGE.shape[1:3]
    scale, width, span = np.float32(1 / math.sqrt(E)), (E + COLUMNS - 1) // COLUMNS * COLUMNS, S + COLUMNS
    keys = 0
    values = keys + span * width
    scores = values + span * width
    query = scores + QUERIES * KEYS
    total = query + QUERIES * width
    tops, sums = work[total + QUERIES * width :][:QUERIES], work[total + QUERIES * width + QUERIES :][:QUERIES]
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        starts, offset = starts_BT[b], offset_B[b]
        seen = min(offset + T, S)
        pack_transposed(key_BSGE[b, :, g], starts[0], seen, work, keys, span)
        pack(value_BSGE[b, :, g], starts[0], seen, np.float32(1), work, values, width)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                pack(query_BTHE[b, q : q + n, h], 0, n, scale, work, query, width)
                work[total : total + QUERIES * width] = 0
                sums[:] = 0
                last = min(offset + q + n, S)
                for k in range(starts[q], last, KEYS):
                    m = min(KEYS, last - k)
                    set_product(work, scores, KEYS, work, query, width, 1, work, keys + k, span, n, m, E)
                    for i in range(n):
                        low, high = max(starts[q + i] - k, 0), min(offset + q + i + 1 - k, m)
                        row = work[scores + i * KEYS : scores + i * KEYS + m]
                        if high <= low:
                            row[:] = 0
                            continue
                        top = largest(row, low, high - low)
                        if sums[i] > 0:
                            top = max(top, tops[i])
                            shrink = exp(tops[i] - top)
                            sums[i] *= shrink
                            if shrink != 1:
                                work[total + i * width : total + (i + 1) * width] *= shrink
                        tops[i] = top
                        sums[i] += exponentials(row[low:high], top)
                        row[:low] = 0
                        row[high:] = 0
                    add_product(work, total, width, work, scores, KEYS, 1, work, values + k * width, width, n, width, m)
                for i in range(n):
                    inverse = np.float32(1) / sums[i]
                    lse_BHT[b, h, q + i] = tops[i] + np.float32(math.log(sums[i]))
                    row = work[total + i * width : total + (i + 1) * width]
                    for e in range(E):
                        out_BTHE[b, q + i, h, e] = row[e] * inverse


@compiled(fastmath=FAST_MATH)
def dot(a, b):
    total = np.float32(0)
    for e in range(len(a)):
        total += a[e] * b[e]
    return total


@compiled(fastmath=FAST_MATH)
def score_gradients(probabilities, dscores, delta):
    for j in range(len(dscores)):
        dscores[j] = probabilities[j] * (dscores[j] - delta)


@compiled()
def attention_backward(
    dout_BTHE, query_BTHE, key_BTGE, value_BTGE, starts_BT, out_BTHE, lse_BHT, dquery_BTHE, dkey_BTGE, dvalue_BTGE, work, first_pair, stop_pair
):
    T, H, E = query_BTHE.shape[1:]
    G = key_BTGE.shape[2]
    scale, width, span = np.float32(1 / math.sqrt(E)), (E + COLUMNS - 1) // COLUMNS * COLUMNS, T + COLUMNS
    keys = 0  # transposed
    values = keys + span * width  # transposed
    key_rows = values + span * width
    dkeys = key_rows + span * width
    dvalues = dkeys + span * width
    scores = dvalues + span * width
    dscores = scores + QUERIES * KEYS
    query = dscores + QUERIES * KEYS
    dout = query + QUERIES * width
    dquery = dout + QUERIES * width
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        starts = starts_BT[b]
        key, value = key_BTGE[b, :, g], value_BTGE[b, :, g]
        pack_transposed(key, 0, T, work, keys, span)
        pack_transposed(value, 0, T, work, values, span)
        pack(key, 0, T, np.float32(1), work, key_rows, width)
        work[dkeys : dkeys + 2 * span * width] = 0
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                pack(query_BTHE[b, q : q + n, h], 0, n, scale, work, query, width)
                pack(dout_BTHE[b, q : q + n, h], 0, n, np.float32(1), work, dout, width)
                work[dquery : dquery + QUERIES * width] = 0
                last = q + n
                for k in range(starts[q], last, KEYS):
                    m = min(KEYS, last - k)
                    padded = (m + COLUMNS - 1) // COLUMNS * COLUMNS
                    set_product(work, scores, KEYS, work, query, width, 1, work, keys + k, span, n, m, E)
                    set_product(work, dscores, KEYS, work, dout, width, 1, work, values + k, span, n, m, E)
                    for i in range(n):
                        low, high = max(starts[q + i] - k, 0), min(q + i + 1 - k, m)
                        row, drow = work[scores + i * KEYS :][:padded], work[dscores + i * KEYS :][:padded]
                        if high > low:
                            exponentials(row[low:high], lse_BHT[b, h, q + i])
                            if starts[q + i] == q + i:  # a single key: its probability is 1 whatever the score
                                drow[low:high] = 0
                            else:
                                score_gradients(row[low:high], drow[low:high], dot(dout_BTHE[b, q + i, h], out_BTHE[b, q + i, h]))
                        row[: max(low, 0)] = 0
                        drow[: max(low, 0)] = 0
                        row[max(high, 0) :] = 0
                        drow[max(high, 0) :] = 0
                    add_product(work, dvalues + k * width, width, work, scores, 1, KEYS, work, dout, width, m, width, n)
                    add_product(work, dkeys + k * width, width, work, dscores, 1, KEYS, work, query, width, m, width, n)
                    add_product(work, dquery, width, work, dscores, KEYS, 1, work, key_rows + k * width, width, n, width, m)
                for i in range(n):
                    row = work[dquery + i * width : dquery + (i + 1) * width]
                    for e in range(E):
                        dquery_BTHE[b, q + i, h, e] = row[e] * scale
        for t in range(T):
            for e in range(E):
                dkey_BTGE[b, t, g, e] = work[dkeys + t * width + e]
                dvalue_BTGE[b, t, g, e] = work[dvalues + t * width + e]
