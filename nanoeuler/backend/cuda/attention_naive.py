"""Attention the plain way, as the first rung of the ladder that `attention.cu` ends: for learners and for comparison; nothing trains with it."""

from typing import Any

import numpy as np

from nanoeuler.backend.cuda.engine import Array, CudaBackend, row_stride


def attention(
    engine: CudaBackend, query_BTHE: Array, key_BSGE: Array, value_BSGE: Array, starts_BT: Array, offset_B: Array, out_BTHE: Array, lse_BHT: Array
) -> None:
    (B, T, H, E), S = query_BTHE.shape, key_BSGE.shape[1]
    source, shape = engine.sources.attention_naive(E), attention_shape(query_BTHE, key_BSGE, out_BTHE)
    engine.launch(source, "attention", (T, H, B), 128, query_BTHE, key_BSGE, value_BSGE, starts_BT, offset_B, out_BTHE, lse_BHT, *shape, shared=4 * S)


def attention_backward(
    engine: CudaBackend,
    dout_BTHE: Array,
    query_BTHE: Array,
    key_BTGE: Array,
    value_BTGE: Array,
    starts_BT: Array,
    lse_BHT: Array,
    dquery_BTHE: Array,
    dkey_BTGE: Array,
    dvalue_BTGE: Array,
) -> None:
    (B, T, H, E), G = query_BTHE.shape, key_BTGE.shape[2]
    source, shape = engine.sources.attention_naive(E), attention_shape(query_BTHE, key_BTGE, dout_BTHE)
    delta = engine.scratch("plain attention", B * H * T, np.float32)
    inputs = dout_BTHE, query_BTHE, key_BTGE, value_BTGE, starts_BT, lse_BHT
    engine.launch(source, "attention_backward_query", (T, H, B), 128, *inputs, dquery_BTHE, delta, row_stride(dquery_BTHE), *shape, shared=4 * T)
    engine.launch(source, "attention_backward_key", (T, G, B), 128, *inputs, delta, dkey_BTGE, dvalue_BTGE, row_stride(dkey_BTGE), *shape)


def attention_shape(query_BTHE: Array, key_BSGE: Array, out_BTHE: Array) -> tuple[Any, ...]:
    """Sizes and strides as the kernels of `attention_naive.cu` take them."""
    batch = [np.int64(array.strides[0] // array.itemsize) for array in (query_BTHE, key_BSGE, out_BTHE)]
    return query_BTHE.shape[1], key_BSGE.shape[1], query_BTHE.shape[2], key_BSGE.shape[2], *map(row_stride, (query_BTHE, key_BSGE, out_BTHE)), *batch
