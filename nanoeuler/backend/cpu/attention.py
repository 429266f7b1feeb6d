"""Causal attention by tiles with an online softmax: no T × T array exists.

Sources: Dao et al. 2022, algorithm 1; Milakov & Gimelshein 2018.

A block of QUERIES queries meets tiles of KEYS keys. For each query the kernel keeps the largest
score so far, the sum of exponentials and the weighted sum of values, and rescales both sums when a
larger score turns up. The backward pass recomputes the probabilities of a tile from the saved
log-sum-exp.

Threads share the pairs of batch row and key/value head. Keys and values of a pair are copied once
for all query heads that share them. Keys are transposed on the way, because the right side of a
product is read along its rows. Names and shapes are those of `backend/reference.py`. `work` is
scratch memory of `work_floats` floats.
"""

import math

import numpy as np

from nanoeuler.backend.cpu.elementwise import rotate
from nanoeuler.backend.cpu.functions import log
from nanoeuler.backend.cpu.simd import (
    COLUMNS,
    LANES,
    add_product,
    exp,
    exponentials,
    largest,
    score_gradients,
    set_product,
)
from nanoeuler.backend.cpu.vector_maps import soft_cap, soft_cap_only
from nanoeuler.backend.cpu.vectors import any_layout, dot, fill, prefetch, row_of, scale_into, span
from nanoeuler.system.compiling import compiled

QUERIES, KEYS = 32, 128
"""Size of a tile: its scores take 16 kB, which stay in the first-level cache."""
CACHE_LINE_FLOATS = 16
ZERO, ONE = np.float32(0), np.float32(1)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def work_floats(keys: int, head_size: int) -> int:
    """Floats of scratch memory that the kernels below need for rows of `keys` keys."""
    width = round_up(head_size, COLUMNS)
    tiles = 2 * QUERIES * KEYS + 3 * QUERIES * width
    return 5 * (keys + COLUMNS) * width + tiles + KEYS + 2 * QUERIES


@compiled()
def pack(x_BTHE, b, h, first, stop, factor, work, at, width):
    """Copy x[b, first … stop, h] · factor to rows of `width` floats from `at` on, zero-padded."""
    E = x_BTHE.shape[3]
    for t in range(first, stop):
        row = at + (t - first) * width
        scale_into(row_of(x_BTHE, (b, t, h)), factor, span(work, row, E))
        fill(span(work, row + E, width - E), ZERO)


@compiled()
def pack_transposed(x_BTHE, b, h, first, stop, work, at, stride):
    """Copy x[b, first … stop, h] to columns; the rows are `stride` floats apart from `at` on."""
    for t in range(first, stop):
        row = row_of(x_BTHE, (b, t, h))
        for e in range(len(row)):
            work[at + e * stride + t - first] = row[e]


@compiled()
def prefetch_rows(x_BTHE, b, h, first, stop):
    """Prefetch x[b, first … stop, h], whose rows are too far apart for the processor to predict."""
    for t in range(first, min(stop, x_BTHE.shape[1])):
        row = row_of(x_BTHE, (b, t, h))
        for e in range(0, len(row), CACHE_LINE_FLOATS):
            prefetch(row, e)


@compiled()
def next_block(pair, h, q, T, H, G):
    """Batch row, query head and first query of the block that is computed next."""
    if q + QUERIES < T:
        return pair // G, h, q + QUERIES
    if (h + 1) % (H // G) > 0:
        return pair // G, h + 1, 0
    return (pair + 1) // G, (pair + 1) % G * (H // G), 0


@compiled()
def clear_outside(work, at, low, high, stop):
    """Zero the whole vectors in front of `low`, and those from `high` to `stop`.

    The three indices count from `at`.
    """
    fill(span(work, at, low // LANES * LANES), ZERO)
    done = (high + LANES - 1) // LANES * LANES
    if done < stop:
        fill(span(work, at + done, stop - done), ZERO)


@compiled()
def attention(
    query_BTHE,
    key_BSGE,
    value_BSGE,
    starts_BT,
    offset_B,
    out_BTHE,
    lse_BHT,
    cap,
    work,
    first_pair,
    stop_pair,
):
    """`cap`: of scores; 0: none."""
    T, H, E = query_BTHE.shape[1:]
    S, G = key_BSGE.shape[1:3]
    scale = np.float32(1 / math.sqrt(E))
    width = (E + COLUMNS - 1) // COLUMNS * COLUMNS
    stride = S + COLUMNS  # of the transposed keys
    query_BTHE = any_layout(query_BTHE)
    key_BSGE = any_layout(key_BSGE)
    value_BSGE = any_layout(value_BSGE)
    out_BTHE = any_layout(out_BTHE)
    keys = 0  # transposed
    values = keys + stride * width
    scores = values + stride * width
    query = scores + QUERIES * KEYS
    total = query + QUERIES * width
    tops = span(work, total + QUERIES * width, QUERIES)
    sums = span(work, total + QUERIES * width + QUERIES, QUERIES)
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        offset = np.int64(offset_B[b])
        begin = np.int64(starts_BT[b, 0])
        seen = min(offset + T, S)
        pack_transposed(key_BSGE, b, g, begin, seen, work, keys + begin, stride)
        pack(value_BSGE, b, g, begin, seen, ONE, work, values + begin * width, width)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                next_b, next_h, next_q = next_block(pair, h, q, T, H, G)
                if next_b * G + next_h // (H // G) < stop_pair:
                    prefetch_rows(query_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                pack(query_BTHE, b, h, q, q + n, scale, work, query, width)
                fill(span(work, total, QUERIES * width), ZERO)
                fill(sums, ZERO)
                last = min(offset + q + n, S)
                for k in range(np.int64(starts_BT[b, q]), last, KEYS):
                    m = min(KEYS, last - k)
                    left, right = (query, width, 1), (keys + k, stride)
                    set_product(work, (scores, KEYS), left, right, (n, m, E))
                    for i in range(n):
                        at = scores + i * KEYS
                        low = max(np.int64(starts_BT[b, q + i]) - k, 0)
                        high = min(offset + q + i + 1 - k, m)
                        if high <= low:
                            clear_outside(work, at, 0, 0, m)
                            continue
                        if cap > 0:
                            row = span(work, at, m)
                            soft_cap_only(m, (row,), (row,), cap)
                        top = largest(work, at + low, high - low)
                        if sums[i] > 0:
                            top = max(top, tops[i])
                            if top > tops[i]:
                                shrink = exp(tops[i] - top)
                                row = span(work, total + i * width, width)
                                sums[i] *= shrink
                                scale_into(row, shrink, row)
                        tops[i] = top
                        sums[i] += exponentials(work, at, low, high, top, 0, top)
                        clear_outside(work, at, low, high, m)
                    left, right = (scores, KEYS, 1), (values + k * width, width)
                    add_product(work, (total, width), left, right, (n, width, m))
                for i in range(n):
                    lse_BHT[b, h, q + i] = tops[i] + np.float32(log(sums[i]))
                    row = span(work, total + i * width, E)
                    scale_into(row, ONE / sums[i], row_of(out_BTHE, (b, q + i, h)))


@compiled()
def rotate_back(row, position, cos_PE, sin_PE):
    rotate(row, row_of(cos_PE, position), row_of(sin_PE, position), np.float32(-1))


@compiled()
def attention_backward(
    dout_BTHE,
    query_BTHE,
    key_BTGE,
    value_BTGE,
    starts_BT,
    out_BTHE,
    lse_BHT,
    dquery_BTHE,
    dkey_BTGE,
    dvalue_BTGE,
    rotated,
    positions_N,
    cos_PE,
    sin_PE,
    cap,
    work,
    first_pair,
    stop_pair,
):
    """`cap`: of scores; 0: none.

    `rotated`: queries and keys were rotated by `positions` and the rotary table, so their
    gradients are rotated back."""
    T, H, E = query_BTHE.shape[1:]
    G = key_BTGE.shape[2]
    scale = np.float32(1 / math.sqrt(E))
    width = (E + COLUMNS - 1) // COLUMNS * COLUMNS
    stride = T + COLUMNS  # of the transposed keys and values
    dout_BTHE = any_layout(dout_BTHE)
    query_BTHE = any_layout(query_BTHE)
    key_BTGE = any_layout(key_BTGE)
    value_BTGE = any_layout(value_BTGE)
    keys = 0  # transposed
    values = keys + stride * width  # transposed
    key_rows = values + stride * width
    dkeys = key_rows + stride * width
    dvalues = dkeys + stride * width
    scores = dvalues + stride * width
    dscores = scores + QUERIES * KEYS
    query = dscores + QUERIES * KEYS
    dout = query + QUERIES * width
    dquery = dout + QUERIES * width
    slopes = span(work, dquery + QUERIES * width, KEYS)  # of the caps of a row
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        if pair + 1 < stop_pair:
            prefetch_rows(key_BTGE, (pair + 1) // G, (pair + 1) % G, 0, T)
            prefetch_rows(value_BTGE, (pair + 1) // G, (pair + 1) % G, 0, T)
        pack_transposed(key_BTGE, b, g, 0, T, work, keys, stride)
        pack_transposed(value_BTGE, b, g, 0, T, work, values, stride)
        pack(key_BTGE, b, g, 0, T, ONE, work, key_rows, width)
        fill(span(work, dkeys, 2 * stride * width), ZERO)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                next_b, next_h, next_q = next_block(pair, h, q, T, H, G)
                if next_b * G + next_h // (H // G) < stop_pair:
                    prefetch_rows(query_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                    prefetch_rows(dout_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                    prefetch_rows(out_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                pack(query_BTHE, b, h, q, q + n, scale, work, query, width)
                pack(dout_BTHE, b, h, q, q + n, ONE, work, dout, width)
                fill(span(work, dquery, QUERIES * width), ZERO)
                for k in range(np.int64(starts_BT[b, q]), q + n, KEYS):
                    m = min(KEYS, q + n - k)
                    padded = (m + COLUMNS - 1) // COLUMNS * COLUMNS
                    left, right = (query, width, 1), (keys + k, stride)
                    set_product(work, (scores, KEYS), left, right, (n, m, E))
                    left, right = (dout, width, 1), (values + k, stride)
                    set_product(work, (dscores, KEYS), left, right, (n, m, E))
                    for i in range(n):
                        at, dat = scores + i * KEYS, dscores + i * KEYS
                        start = np.int64(starts_BT[b, q + i])
                        low = max(start - k, 0)
                        high = min(q + i + 1 - k, m)
                        if high <= low:
                            low = high = 0
                        else:
                            dout_row = row_of(dout_BTHE, (b, q + i, h))
                            delta = dot(dout_row, row_of(out_BTHE, (b, q + i, h)))
                            lse = lse_BHT[b, h, q + i]
                            if cap > 0:
                                row = span(work, at, m)
                                soft_cap(m, (row, slopes), (row,), cap)
                            score_gradients(work, at, low, high, lse, dat, delta)
                            if cap > 0:
                                row = span(work, dat + low, high - low)
                                seen = span(slopes, low, high - low)
                                for j in range(len(row)):
                                    row[j] *= seen[j]
                            if start == q + i:
                                # a single key has probability 1, whatever its score
                                work[dat + low] = 0
                        clear_outside(work, at, low, high, padded)
                        clear_outside(work, dat, low, high, padded)
                    left, right = (scores, 1, KEYS), (dout, width)
                    add_product(work, (dvalues + k * width, width), left, right, (m, width, n))
                    left, right = (dscores, 1, KEYS), (query, width)
                    add_product(work, (dkeys + k * width, width), left, right, (m, width, n))
                    left, right = (dscores, KEYS, 1), (key_rows + k * width, width)
                    add_product(work, (dquery, width), left, right, (n, width, m))
                for i in range(n):
                    row = row_of(dquery_BTHE, (b, q + i, h))
                    scale_into(span(work, dquery + i * width, E), scale, row)
                    if rotated:
                        rotate_back(row, positions_N[b * T + q + i], cos_PE, sin_PE)
        for t in range(T):
            row = row_of(dkey_BTGE, (b, t, g))
            scale_into(span(work, dkeys + t * width, E), ONE, row)
            if rotated:
                rotate_back(row, positions_N[b * T + t], cos_PE, sin_PE)
            scale_into(span(work, dvalues + t * width, E), ONE, row_of(dvalue_BTGE, (b, t, g)))
