"""Slots of a cache of keys and values, in floats or in bytes: the specification.

A row of a cache of bytes is a head's key or value: its codes, from −127 to 127, and behind them a
scale in float32, of which the row's numbers are multiples. The largest magnitude becomes 127.
"""

import numpy as np

from nanoeuler.backend.quantized import inverse
from nanoeuler.backend.records import Array

WORD = 4
"""Bytes of a scale; the codes are filled up to whole words."""


def row_bytes(size: int) -> int:
    """Bytes of a row of `size` numbers: its codes and their scale."""
    return -(-size // WORD) * WORD + WORD


def rounded_rows(x: Array) -> Array:
    """Rows (…, E) of floats as bytes (…, `row_bytes`)."""
    top = np.abs(x).max(axis=-1, keepdims=True).astype(np.float32)
    rows = np.zeros((*x.shape[:-1], row_bytes(x.shape[-1])), np.int8)
    rows[..., -WORD:] = (top / np.float32(127)).view(np.int8)
    with np.errstate(invalid="ignore"):  # a scale that is not finite makes its row so, too
        rows[..., : x.shape[-1]] = np.rint(x * (np.float32(127) * inverse(top)))
    return rows


def rows_in_floats(rows: Array, size: int) -> Array:
    """The float32 numbers of what `rounded_rows` made of rows of `size`."""
    scales = np.ascontiguousarray(rows[..., -WORD:]).view(np.float32)
    with np.errstate(invalid="ignore"):
        return rows[..., :size] * scales


def write(cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> Array:
    """cache[b, offset[b] + i] = new[b, i], but for what would lie past the end.

    Returns the cache, or where it has bytes the floats of its slots up to the last new one.
    """
    in_bytes = cache_BSGE.dtype == np.int8
    written = rounded_rows(new_BTGE) if in_bytes else new_BTGE
    for cache, new, offset in zip(cache_BSGE, written, offset_B.tolist(), strict=True):
        cache[offset : offset + len(new)] = new[: max(0, len(cache) - offset)]
    seen = int(offset_B.max()) + new_BTGE.shape[1]
    return rows_in_floats(cache_BSGE[:, :seen], new_BTGE.shape[3]) if in_bytes else cache_BSGE
