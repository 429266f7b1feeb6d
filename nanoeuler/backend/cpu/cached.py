"""Keys and values of past tokens, in floats or in bytes, and what a new token makes of them.

The bytes are those of `backend/cached.py`. They are multiplied as they are: the scale of a key
belongs to its score, and that of a value to its weight.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from nanoeuler.backend.cpu.simd import (
    LANES,
    exponentials,
    key_dots,
    largest,
    one_dot,
    weighted_vector,
)
from nanoeuler.backend.cpu.vectors import fill, scale_into, span
from nanoeuler.system.compiling import compiled

LARGEST_CODE, WORD = np.float32(127), 4
LARGEST_FLOAT = np.finfo(np.float32).max


@compiled()
def add_weighted(target, values, at, factor):
    for e in range(len(target)):
        target[e] += np.float32(values[at + e]) * factor


@compiled()
def round_row(x, cache, at):
    """Codes and scale of `backend/cached.py`'s `rounded_rows`, in bytes from `at` on."""
    top, is_finite = np.float32(0), True
    for e in range(len(x)):
        top = max(top, abs(x[e]))  # which passes over NaN
        is_finite &= abs(x[e]) <= LARGEST_FLOAT
    inverse = LARGEST_CODE * (np.float32(1) / top if top > 0 else np.float32(0))
    for e in range(len(x)):
        cache[at + e] = np.int8(np.rint(x[e] * inverse))
    scale = top / LARGEST_CODE if is_finite else np.float32(np.nan)
    cache.view(np.float32)[(at + len(x) + WORD - 1) // WORD] = scale


def put(x, cache, at):
    """cache[at …] = x, as floats or as bytes."""


@overload(put)
def put_as(x, cache, at):
    if cache.dtype == types.int8:
        return lambda x, cache, at: round_row(x, cache, at)
    return lambda x, cache, at: scale_into(x, np.float32(1), span(cache, at, len(x)))


def apply_scales(weights, cache, at, stride, size):
    """weights[s] *= scale of row s, in a cache of bytes.

    Rows of `size` codes begin at `at`, and are `stride` bytes apart.
    """


@overload(apply_scales)
def apply_scales_of(weights, cache, at, stride, size):
    if cache.dtype != types.int8:
        return lambda weights, cache, at, stride, size: None

    def of_bytes(weights, cache, at, stride, size):
        scales, first = cache.view(np.float32), (at + size + WORD - 1) // WORD
        for s in range(len(weights)):
            weights[s] *= scales[first + s * (stride // WORD)]

    return of_bytes


@compiled()
def attend(query, keys, values, at, stride, seen, scores, out):
    """One head: out = softmax(q kᵀ / √E) v over `seen` keys.

    Keys and values start at `at` and are `stride` floats, or bytes, apart.
    """
    E = len(query)
    whole = seen // 4 * 4
    for s in range(0, whole, 4):
        key_dots(keys, at + s * stride, stride, E, query, 0, E, scores, s, 0)
    for s in range(whole, seen):
        one_dot(keys, at + s * stride, stride, E, query, 0, E, scores, s, 0)
    apply_scales(span(scores, 0, seen), keys, at, stride, E)
    scale_into(span(scores, 0, seen), np.float32(1 / math.sqrt(E)), span(scores, 0, seen))
    top = largest(scores, 0, seen)
    total = exponentials(scores, 0, 0, seen, top, 0, top)
    apply_scales(span(scores, 0, seen), values, at, stride, E)
    whole = E // LANES * LANES
    for e in range(0, whole, LANES):
        weighted_vector(out, e, values, at + e, stride, scores, 0, seen)
    if whole < E:
        rest = span(out, whole, E - whole)
        fill(rest, np.float32(0))
        for s in range(seen):
            add_weighted(rest, values, at + s * stride + whole, scores[s])
    scale_into(out, np.float32(1) / total, out)
