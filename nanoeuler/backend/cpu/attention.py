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

from nanoeuler.backend.cpu.elementwise import turn
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
from nanoeuler.backend.cpu.vectors import any_layout, ask_for, dot, fill, line, scale_into, span
from nanoeuler.compiling import compiled

QUERIES, KEYS = 32, 128
"""Of a tile: 16 kB of scores, which stay in the first-level cache."""
LINE_FLOATS = 16
"""Of a cache line."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def work_floats(keys: int, head_size: int) -> int:
    """Floats of room that the kernels below need for rows of `keys` keys."""
    width = round_up(head_size, COLUMNS)
    return 5 * (keys + COLUMNS) * width + 2 * QUERIES * KEYS + 3 * QUERIES * width + 2 * QUERIES


@compiled()
def pack(x_BTHE, b, h, first, stop, factor, work, at, width):
    """x[b, first … stop, h], times `factor`, to rows of `width` floats from `at` on; the columns beyond are zero."""
    E = x_BTHE.shape[3]
    for t in range(first, stop):
        place = at + (t - first) * width
        scale_into(line(x_BTHE, (b, t, h)), factor, span(work, place, E))
        fill(span(work, place + E, width - E), np.float32(0))


@compiled()
def pack_transposed(x_BTHE, b, h, first, stop, work, at, stride):
    """x[b, first … stop, h] to the columns of rows of `stride` floats from `at` on."""
    for t in range(first, stop):
        row = line(x_BTHE, (b, t, h))
        for e in range(len(row)):
            work[at + e * stride + t - first] = row[e]


@compiled()
def fetch(x_BTHE, b, h, first, stop):
    """Ask for x[b, first … stop, h], whose rows lie too far apart for the processor to foresee."""
    for t in range(first, min(stop, x_BTHE.shape[1])):
        row = line(x_BTHE, (b, t, h))
        for e in range(0, len(row), LINE_FLOATS):
            ask_for(row, e)


@compiled()
def following(pair, h, q, T, H, G):
    """Row, query head and first query of the block behind this one."""
    if q + QUERIES < T:
        return pair // G, h, q + QUERIES
    if (h + 1) % (H // G) > 0:
        return pair // G, h + 1, 0
    return (pair + 1) // G, (pair + 1) % G * (H // G), 0


@compiled()
def clear_outside(work, at, low, high, stop):
    """Zeros in the whole vectors before `low` and from behind `high` to `stop`, counted from `at`."""
    fill(span(work, at, low // LANES * LANES), np.float32(0))
    done = (high + LANES - 1) // LANES * LANES
    if done < stop:
        fill(span(work, at + done, stop - done), np.float32(0))


@compiled()
def attention(
    query_BTHE,
    key_BSGE,
    value_BSGE,
    starts_BT,
    offset_B,
    out_BTHE,
    lse_BHT,
    work,
    first_pair,
    stop_pair,
):
    T, H, E = query_BTHE.shape[1:]
    S, G = key_BSGE.shape[1:3]
    one, scale, width, reach = (
        np.float32(1),
        np.float32(1 / math.sqrt(E)),
        (E + COLUMNS - 1) // COLUMNS * COLUMNS,
        S + COLUMNS,
    )
    query_BTHE, key_BSGE, value_BSGE, out_BTHE = (
        any_layout(query_BTHE),
        any_layout(key_BSGE),
        any_layout(value_BSGE),
        any_layout(out_BTHE),
    )
    keys = 0  # transposed
    values = keys + reach * width
    scores = values + reach * width
    query = scores + QUERIES * KEYS
    total = query + QUERIES * width
    tops, sums = (
        span(work, total + QUERIES * width, QUERIES),
        span(work, total + QUERIES * width + QUERIES, QUERIES),
    )
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        offset, begin = np.int64(offset_B[b]), np.int64(starts_BT[b, 0])
        seen = min(offset + T, S)
        pack_transposed(key_BSGE, b, g, begin, seen, work, keys + begin, reach)
        pack(value_BSGE, b, g, begin, seen, one, work, values + begin * width, width)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                next_b, next_h, next_q = following(pair, h, q, T, H, G)
                if next_b * G + next_h // (H // G) < stop_pair:
                    fetch(query_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                pack(query_BTHE, b, h, q, q + n, scale, work, query, width)
                fill(span(work, total, QUERIES * width), np.float32(0))
                fill(sums, np.float32(0))
                last = min(offset + q + n, S)
                for k in range(np.int64(starts_BT[b, q]), last, KEYS):
                    m = min(KEYS, last - k)
                    set_product(
                        work, scores, KEYS, work, query, width, 1, work, keys + k, reach, n, m, E
                    )
                    for i in range(n):
                        at, low, high = (
                            scores + i * KEYS,
                            max(np.int64(starts_BT[b, q + i]) - k, 0),
                            min(offset + q + i + 1 - k, m),
                        )
                        if high <= low:
                            clear_outside(work, at, 0, 0, m)
                            continue
                        top = largest(work, at + low, high - low)
                        if sums[i] > 0:
                            top = max(top, tops[i])
                            if top > tops[i]:
                                shrink, row = (
                                    exp(tops[i] - top),
                                    span(work, total + i * width, width),
                                )
                                sums[i] *= shrink
                                scale_into(row, shrink, row)
                        tops[i] = top
                        sums[i] += exponentials(work, at, low, high, top, 0, top)
                        clear_outside(work, at, low, high, m)
                    add_product(
                        work,
                        total,
                        width,
                        work,
                        scores,
                        KEYS,
                        1,
                        work,
                        values + k * width,
                        width,
                        n,
                        width,
                        m,
                    )
                for i in range(n):
                    lse_BHT[b, h, q + i] = tops[i] + np.float32(math.log(sums[i]))
                    scale_into(
                        span(work, total + i * width, E),
                        one / sums[i],
                        line(out_BTHE, (b, q + i, h)),
                    )


@compiled()
def turn_back(row, position, cos_PE, sin_PE):
    turn(row, line(cos_PE, position), line(sin_PE, position), np.float32(-1))


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
    turned,
    positions_N,
    cos_PE,
    sin_PE,
    work,
    first_pair,
    stop_pair,
):
    """`turned`: queries and keys had been turned by `positions` and the rotary table, and their gradients are turned back."""
    T, H, E = query_BTHE.shape[1:]
    G = key_BTGE.shape[2]
    one, scale, width, reach = (
        np.float32(1),
        np.float32(1 / math.sqrt(E)),
        (E + COLUMNS - 1) // COLUMNS * COLUMNS,
        T + COLUMNS,
    )
    dout_BTHE, query_BTHE, key_BTGE, value_BTGE = (
        any_layout(dout_BTHE),
        any_layout(query_BTHE),
        any_layout(key_BTGE),
        any_layout(value_BTGE),
    )
    keys = 0  # transposed
    values = keys + reach * width  # transposed
    key_rows = values + reach * width
    dkeys = key_rows + reach * width
    dvalues = dkeys + reach * width
    scores = dvalues + reach * width
    dscores = scores + QUERIES * KEYS
    query = dscores + QUERIES * KEYS
    dout = query + QUERIES * width
    dquery = dout + QUERIES * width
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        if pair + 1 < stop_pair:
            fetch(key_BTGE, (pair + 1) // G, (pair + 1) % G, 0, T)
            fetch(value_BTGE, (pair + 1) // G, (pair + 1) % G, 0, T)
        pack_transposed(key_BTGE, b, g, 0, T, work, keys, reach)
        pack_transposed(value_BTGE, b, g, 0, T, work, values, reach)
        pack(key_BTGE, b, g, 0, T, one, work, key_rows, width)
        fill(span(work, dkeys, 2 * reach * width), np.float32(0))
        for h in range(g * (H // G), (g + 1) * (H // G)):
            for q in range(0, T, QUERIES):
                n = min(QUERIES, T - q)
                next_b, next_h, next_q = following(pair, h, q, T, H, G)
                if next_b * G + next_h // (H // G) < stop_pair:
                    fetch(query_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                    fetch(dout_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                    fetch(out_BTHE, next_b, next_h, next_q, next_q + QUERIES)
                pack(query_BTHE, b, h, q, q + n, scale, work, query, width)
                pack(dout_BTHE, b, h, q, q + n, one, work, dout, width)
                fill(span(work, dquery, QUERIES * width), np.float32(0))
                for k in range(np.int64(starts_BT[b, q]), q + n, KEYS):
                    m = min(KEYS, q + n - k)
                    padded = (m + COLUMNS - 1) // COLUMNS * COLUMNS
                    set_product(
                        work, scores, KEYS, work, query, width, 1, work, keys + k, reach, n, m, E
                    )
                    set_product(
                        work, dscores, KEYS, work, dout, width, 1, work, values + k, reach, n, m, E
                    )
                    for i in range(n):
                        start = np.int64(starts_BT[b, q + i])
                        low, high = max(start - k, 0), min(q + i + 1 - k, m)
                        if high <= low:
                            low = high = 0
                        else:
                            delta = dot(
                                line(dout_BTHE, (b, q + i, h)), line(out_BTHE, (b, q + i, h))
                            )
                            score_gradients(
                                work,
                                scores + i * KEYS,
                                low,
                                high,
                                lse_BHT[b, h, q + i],
                                dscores + i * KEYS,
                                delta,
                            )
                            if (
                                start == q + i
                            ):  # a single key: its probability is 1 whatever the score
                                work[dscores + i * KEYS + low] = 0
                        clear_outside(work, scores + i * KEYS, low, high, padded)
                        clear_outside(work, dscores + i * KEYS, low, high, padded)
                    add_product(
                        work,
                        dvalues + k * width,
                        width,
                        work,
                        scores,
                        1,
                        KEYS,
                        work,
                        dout,
                        width,
                        m,
                        width,
                        n,
                    )
                    add_product(
                        work,
                        dkeys + k * width,
                        width,
                        work,
                        dscores,
                        1,
                        KEYS,
                        work,
                        query,
                        width,
                        m,
                        width,
                        n,
                    )
                    add_product(
                        work,
                        dquery,
                        width,
                        work,
                        dscores,
                        KEYS,
                        1,
                        work,
                        key_rows + k * width,
                        width,
                        n,
                        width,
                        m,
                    )
                for i in range(n):
                    row = line(dquery_BTHE, (b, q + i, h))
                    scale_into(span(work, dquery + i * width, E), scale, row)
                    if turned:
                        turn_back(row, positions_N[b * T + q + i], cos_PE, sin_PE)
        for t in range(T):
            row = line(dkey_BTGE, (b, t, g))
            scale_into(span(work, dkeys + t * width, E), one, row)
            if turned:
                turn_back(row, positions_N[b * T + t], cos_PE, sin_PE)
            scale_into(span(work, dvalues + t * width, E), one, line(dvalue_BTGE, (b, t, g)))
