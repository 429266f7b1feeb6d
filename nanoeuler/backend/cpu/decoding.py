"""A whole layer for one new token per row: what decoding does, bound by reading the weights once.

Matrix products with one vector are sums along the rows of the weight; nothing is worth packing, and a dozen calls per layer would
take longer than the arithmetic of a small model. Formulas and names are those of `backend/reference.py`.
"""

import math
from typing import Any

import numpy as np

from nanoeuler.backend.cpu.elementwise import add_scaled, normed, turn
from nanoeuler.backend.cpu.simd import LANES, exponentials, largest, weighted_vector
from nanoeuler.backend.cpu.vector_maps import swiglu
from nanoeuler.backend.cpu.vectors import dot, fill, line, scale_into, span
from nanoeuler.backend.records import AttentionForm, DecodeStep, SwigluForm
from nanoeuler.compiling import FAST_MATH, compiled

WEIGHT_ROWS = 16
"""Of a weight, read together: they stay in the first-level cache while all rows of x meet them."""


@compiled()
def sums_of_rows(values, at, stride, rows, x, out):
    """out[r] = Σ values[at + r · stride + i] · x[i] for r < rows, one row behind the other: the order in which memory is fetched ahead."""
    for r in range(rows):
        out[r] = dot(span(values, at + r * stride, len(x)), x)


@compiled()
def products(weight_OI, x_BI, out_BO):
    """out = x Wᵀ for a few rows x: some rows of the weight at a time, so that memory is read once."""
    outputs, inputs = weight_OI.shape
    weight = weight_OI.reshape(-1)
    for o in range(0, outputs, WEIGHT_ROWS):
        rows = min(WEIGHT_ROWS, outputs - o)
        for b in range(len(x_BI)):
            sums_of_rows(
                weight, o * inputs, inputs, rows, line(x_BI, b), span(line(out_BO, b), o, rows)
            )


@compiled(fastmath=FAST_MATH)
def add_weighted(target, values, factor):
    for e in range(len(target)):
        target[e] += values[e] * factor


@compiled()
def attend(query, keys, values, at, stride, seen, scores, out):
    """One head: out = softmax(q kᵀ / √E) v over `seen` keys, which like the values lie at `at`, `stride` floats apart."""
    E = len(query)
    sums_of_rows(keys, at, stride, seen, query, scores)
    scale_into(span(scores, 0, seen), np.float32(1 / math.sqrt(E)), span(scores, 0, seen))
    top = largest(scores, 0, seen)
    total = exponentials(scores, 0, 0, seen, top, 0, top)
    whole = E // LANES * LANES
    for e in range(0, whole, LANES):
        weighted_vector(out, e, values, at + e, stride, scores, 0, seen)
    if whole < E:
        rest = span(out, whole, E - whole)
        fill(rest, np.float32(0))
        for s in range(seen):
            add_weighted(rest, span(values, at + s * stride + whole, E - whole), scores[s])
    scale_into(out, np.float32(1) / total, out)


@compiled()
def layer(
    x_BD,
    lengths_B,
    weights,
    parts,
    cos_PE,
    sin_PE,
    keys_BSGE,
    values_BSGE,
    constants,
    room,
):
    """x ← the layer's output; the new keys and values go to place lengths[b] of the cache.

    `weights` are (attention norm, q/k/v, attention output, MLP norm, gate/up, down), `parts` the first columns of key, value and
    up in the packed products, `constants` (ε, h), `room` at least `scratch_floats` floats a row.
    """
    attention_norm, query_key_value, attention_output, mlp_norm, gate_up, down = weights
    epsilon, step_size = constants
    (B, D), (S, G, E), F = x_BD.shape, keys_BSGE.shape[1:], down.shape[1]
    H, columns, wide = attention_output.shape[1] // E, len(query_key_value), len(gate_up)
    at = 0
    keys, values = keys_BSGE.reshape(-1), values_BSGE.reshape(-1)
    normed_BD = span(room, at, B * D).reshape(B, D)
    at += B * D
    packed_BC = span(room, at, B * columns).reshape(B, columns)
    at += B * columns
    attended_BC = span(room, at, B * H * E).reshape(B, H * E)
    at += B * H * E
    gate_up_BC = span(room, at, B * wide).reshape(B, wide)
    at += B * wide
    hidden_BF = span(room, at, B * F).reshape(B, F)
    at += B * F
    delta_BD = span(room, at, B * D).reshape(B, D)
    at += B * D
    scores = span(room, at, S + LANES)
    for b in range(B):
        normed(line(x_BD, b), attention_norm, epsilon, line(normed_BD, b))
    products(query_key_value, normed_BD, packed_BC)
    for b in range(B):
        packed, place = line(packed_BC, b), lengths_B[b]
        cos, sin = line(cos_PE, place), line(sin_PE, place)
        for h in range(H):
            turn(span(packed, h * E, E), cos, sin, np.float32(1))
        for g in range(G):
            key = span(packed, parts[0] + g * E, E)
            turn(key, cos, sin, np.float32(1))
            scale_into(key, np.float32(1), line(keys_BSGE, (b, place, g)))
            scale_into(
                span(packed, parts[1] + g * E, E), np.float32(1), line(values_BSGE, (b, place, g))
            )
        for h in range(H):
            out = span(line(attended_BC, b), h * E, E)
            attend(
                span(packed, h * E, E),
                keys,
                values,
                (b * S * G + h // (H // G)) * E,
                G * E,
                place + 1,
                scores,
                out,
            )
    products(attention_output, attended_BC, delta_BD)
    for b in range(B):
        x = line(x_BD, b)
        add_scaled(x, line(delta_BD, b), step_size, x)
        normed(x, mlp_norm, epsilon, line(normed_BD, b))
    products(gate_up, normed_BD, gate_up_BC)
    for b in range(B):
        packed = line(gate_up_BC, b)
        swiglu(
            F, (line(hidden_BF, b),), (span(packed, 0, F), span(packed, parts[2], F)), np.float32(1)
        )
    products(down, hidden_BF, delta_BD)
    for b in range(B):
        x = line(x_BD, b)
        add_scaled(x, line(delta_BD, b), step_size, x)


def layers_of(step: DecodeStep) -> list[tuple[Any, ...]]:
    """What `layer` is given for each layer: weights, parts, constants, keys and values."""
    layers = []
    pairs = zip(step.forms[::2], step.forms[1::2], strict=True)
    for index, (attention, mlp) in enumerate(pairs):
        assert isinstance(attention, AttentionForm)
        assert isinstance(mlp, SwigluForm)
        a, m, slots = step.weights[2 * index], step.weights[2 * index + 1], step.slots[2 * index]
        assert slots is not None
        weights = a.norm, a.query_key_value, a.output, m.norm, m.gate_up, m.down
        parts = attention.key.start, attention.value.start, mlp.up.start
        constants = np.float32(attention.epsilon), np.float32(attention.step_size)
        layers.append((weights, parts, constants, *slots))
    return layers


def scratch_floats(step: DecodeStep) -> int:
    """Floats of scratch memory that `layer` needs for each row."""
    attention, mlp = step.forms[:2]
    assert isinstance(attention, AttentionForm)
    assert isinstance(mlp, SwigluForm)
    assert step.slots[0] is not None
    capacity = step.slots[0].keys_BSGE.shape[1]
    products = attention.columns + attention.heads * attention.head_size + mlp.columns + mlp.ffn
    return 2 * step.x_BD.shape[1] + products + capacity + LANES
