"""A whole layer for one new token of each sequence, or for a few, in one call.

Decoding is bound by reading the weights, once. A product with few vectors is a sum along each row
of the weight: copying it into another order would not pay. A dozen calls for each layer would take
longer than the arithmetic of a small model. Formulas and names are those of `backend/reference.py`.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from nanoeuler.backend.cpu import quantized
from nanoeuler.backend.cpu.cached import attend, put
from nanoeuler.backend.cpu.elementwise import add_biased, add_scaled, layer_normed, normed, rotate
from nanoeuler.backend.cpu.simd import LANES, eight_dots, four_dots, key_dots, one_dot
from nanoeuler.backend.cpu.teams import meet, share
from nanoeuler.backend.cpu.vector_maps import biased_gelu, swiglu
from nanoeuler.backend.cpu.vectors import dot, row_of, scale_into, span
from nanoeuler.backend.quantized import Quantized
from nanoeuler.backend.records import AttentionForm, DecodeStep, GeluForm, SwigluForm
from nanoeuler.system.compiling import compiled

UNIT = 2 * LANES
"""Outputs that one part of a team computes: their number is a multiple of this, or what is left."""
WEIGHT_ROWS = 16
"""Rows of a weight that are read together: they stay in the first-level cache for all rows of x."""


@compiled()
def sums_of_rows(values, at, stride, rows, x, out):
    """out[r] = Σ values[at + r · stride + i] · x[i] for r < rows.

    One row after the other, because that is the order that the processor prefetches.
    """
    for r in range(rows):
        out[r] = dot(span(values, at + r * stride, len(x)), x)


@compiled()
def products(weight_OI, x_BI, out_BO, first, stop):
    """out = x Wᵀ for few rows of x, which share some rows of the weight at a time, and for outputs
    from `first` to `stop`."""
    inputs = weight_OI.shape[1]
    weight = weight_OI.reshape(-1)
    for o in range(first, stop, WEIGHT_ROWS):
        rows = min(WEIGHT_ROWS, stop - o)
        for b in range(len(x_BI)):
            out = span(row_of(out_BO, b), o, rows)
            sums_of_rows(weight, o * inputs, inputs, rows, row_of(x_BI, b), out)


@compiled()
def shared_products(weight_OI, x_NI, out_NO, begin, end):
    """`products`, where rows of x share each load of the weight.

    A row's output does not depend on how many rows there are: tokens that are checked together get
    the bits that each gets alone.
    """
    outputs, D = weight_OI.shape
    N = len(x_NI)
    weight, x, out = weight_OI.reshape(-1), x_NI.reshape(-1), out_NO.reshape(-1)
    for first in range(begin, end, WEIGHT_ROWS):
        stop = min(first + WEIGHT_ROWS, end)
        is_even, n = (stop - first) % 2 == 0, 0
        while n < N:
            x_at, out_at = n * D, n * outputs
            if n + 4 <= N and is_even:
                for o in range(first, stop, 2):
                    eight_dots(weight, o * D, D, D, x, x_at, D, out, out_at + o, outputs)
                n += 4
            elif n + 2 <= N and is_even:
                for o in range(first, stop, 2):
                    four_dots(weight, o * D, D, D, x, x_at, D, out, out_at + o, outputs)
                n += 2
            else:
                whole = first + (stop - first) // 4 * 4
                for o in range(first, whole, 4):
                    key_dots(weight, o * D, D, D, x, x_at, D, out, out_at + o, outputs)
                for o in range(whole, stop):
                    one_dot(weight, o * D, D, D, x, x_at, D, out, out_at + o, outputs)
                n += 1


def product(weight, x_NI, rounded, out_NO, first, stop):
    """`shared_products` of a matrix, or of the codes and scales of one that is quantized.

    `rounded` is scratch memory for the latter.
    """


@overload(product)
def product_of(weight, x_NI, rounded, out_NO, first, stop):
    if isinstance(weight, types.BaseTuple):

        def of_codes(weight, x_NI, rounded, out_NO, first, stop):
            quantized.round_rows(weight[0], x_NI, rounded)
            quantized.products(weight[0], weight[1], rounded, out_NO, first, stop)

        return of_codes

    def of_floats(weight, x_NI, rounded, out_NO, first, stop):
        shared_products(weight, x_NI, out_NO, first, stop)

    return of_floats


@compiled()
def normed_head(x, weight, epsilon):
    """x ← weight · x / r, in place; an empty weight stands for ones."""
    inverse = np.float32(1) / np.sqrt(dot(x, x) / np.float32(len(x)) + epsilon)
    scale_into(x, inverse, x)
    for e in range(len(weight)):
        x[e] *= weight[e]


@compiled()
def add_columns(x_ND, delta_ND, step_size, first, stop):
    """x += h · delta, in some columns."""
    for n in range(len(x_ND)):
        x = span(row_of(x_ND, n), first, stop - first)
        add_scaled(x, span(row_of(delta_ND, n), first, stop - first), step_size, x)


@compiled()
def add_biased_columns(x_ND, delta_ND, bias_D, step_size, first, stop):
    """x += h · (delta + bias), in some columns."""
    for n in range(len(x_ND)):
        x, bias = span(row_of(x_ND, n), first, stop - first), span(bias_D, first, stop - first)
        add_biased(x, span(row_of(delta_ND, n), first, stop - first), bias, step_size, x)


@compiled()
def matrix(memory, at, rows, columns):
    """A matrix in `memory` from `at` on, and where it ends."""
    size = rows * columns
    return span(memory, at, size).reshape(rows, columns), at + size


@compiled()
def layer(
    x_ND, lengths_B, weights, sizes, cos_PE, sin_PE, keys_BSGE, values_BSGE, constants, memory, team
):
    """x ← the layer's output for T tokens of each of B sequences: x has B · T rows.

    Keys and values of a sequence's new tokens go to the slots of the cache from lengths[b] on; what
    would lie past its end is left out. A token sees the keys of its sequence up to its own.
    `weights`: attention norm, q/k/v, attention output, MLP norm, gate/up, down, and those of the
    norms of query and key heads, which may be empty. A matrix may be a tuple, see `product`.
    `sizes`: query heads and their size, the columns of the packed product q/k/v and the first of
    key and value, the same of gate/up and of up, and ffn. `constants`: ε, h, and whether heads have
    norms. `memory`: what all parts of the team share, and the part's own, of `scratch_floats`.
    `team`: see `teams.py`; each part computes some outputs of a product, and what the others need
    of it they read behind a gate.
    """
    attention_norm, query_key_value, attention_output, mlp_norm, gate_up, down = weights[:6]
    query_norm, key_norm = weights[6:]
    H, E, columns, key_column, value_column, wide, up_column, F = sizes
    epsilon, step_size, qk_norm = constants
    N, D = x_ND.shape
    B, S, G, stride = keys_BSGE.shape
    T = N // B
    one = np.float32(1)
    keys, values = keys_BSGE.reshape(-1), values_BSGE.reshape(-1)
    shared, own = memory
    packed_NC, at = matrix(shared, 0, N, columns)
    attended_NC, at = matrix(shared, at, N, H * E)
    gate_up_NC, at = matrix(shared, at, N, wide)
    hidden_NF, at = matrix(shared, at, N, F)
    delta_ND, _ = matrix(shared, at, N, D)
    normed_ND, at = matrix(own, 0, N, D)
    scores, at = span(own, at, S + LANES), at + S + LANES
    rounded = span(own, at, len(own) - at)
    for n in range(N):
        normed(row_of(x_ND, n), attention_norm, epsilon, row_of(normed_ND, n))
    first, stop = share(columns, team, UNIT)
    product(query_key_value, normed_ND, rounded, packed_NC, first, stop)
    meet(team)
    first_pair, stop_pair = share(B * G, team, 1)
    for pair in range(first_pair, stop_pair):
        b, g = pair // G, pair % G
        for n in range(b * T, (b + 1) * T):
            slot = lengths_B[b] + n - b * T
            if slot >= S:
                break
            packed, cos, sin = row_of(packed_NC, n), row_of(cos_PE, slot), row_of(sin_PE, slot)
            key = span(packed, key_column + g * E, E)
            if qk_norm:
                normed_head(key, key_norm, epsilon)
            rotate(key, cos, sin, one)
            place = ((b * S + slot) * G + g) * stride
            put(key, keys, place)
            put(span(packed, value_column + g * E, E), values, place)
            for h in range(g * (H // G), (g + 1) * (H // G)):
                query, out = span(packed, h * E, E), span(row_of(attended_NC, n), h * E, E)
                if qk_norm:
                    normed_head(query, query_norm, epsilon)
                rotate(query, cos, sin, one)
                begin = (b * S * G + g) * stride
                attend(query, keys, values, begin, G * stride, slot + 1, scores, out)
    meet(team)
    first, stop = share(D, team, UNIT)
    product(attention_output, attended_NC, rounded, delta_ND, first, stop)
    add_columns(x_ND, delta_ND, step_size, first, stop)
    meet(team)
    for n in range(N):
        normed(row_of(x_ND, n), mlp_norm, epsilon, row_of(normed_ND, n))
    first, stop = share(F, team, UNIT)
    product(gate_up, normed_ND, rounded, gate_up_NC, first, stop)
    product(gate_up, normed_ND, rounded, gate_up_NC, up_column + first, up_column + stop)
    for n in range(N):
        packed, count = row_of(gate_up_NC, n), stop - first
        inputs = span(packed, first, count), span(packed, up_column + first, count)
        swiglu(count, (span(row_of(hidden_NF, n), first, count),), inputs, one)
    meet(team)
    first, stop = share(D, team, UNIT)
    product(down, hidden_NF, rounded, delta_ND, first, stop)
    add_columns(x_ND, delta_ND, step_size, first, stop)
    meet(team)


@compiled()
def biased_layer(x_ND, lengths_B, weights, F, keys_BSGE, values_BSGE, constants, memory, team):
    """`layer` of a GPT-2: with LayerNorm, biases and GELU, and without a rotation.

    `weights`: weight and bias of the attention norm, of q/k/v and of the attention output, then
    those of the MLP norm, of up and of down. `F`: ffn.
    """
    norm, norm_bias, query_key_value, packed_bias, output, output_bias = weights[:6]
    mlp_norm, mlp_norm_bias, up, up_bias, down, down_bias = weights[6:]
    epsilon, step_size = constants
    N, D = x_ND.shape
    B, S, H, stride = keys_BSGE.shape
    T, E = N // B, D // H
    one = np.float32(1)
    keys, values = keys_BSGE.reshape(-1), values_BSGE.reshape(-1)
    shared, own = memory
    packed_NC, at = matrix(shared, 0, N, 3 * D)
    attended_ND, at = matrix(shared, at, N, D)
    up_NF, at = matrix(shared, at, N, F)
    hidden_NF, at = matrix(shared, at, N, F)
    delta_ND, _ = matrix(shared, at, N, D)
    normed_ND, at = matrix(own, 0, N, D)
    scores, at = span(own, at, S + LANES), at + S + LANES
    rounded = span(own, at, len(own) - at)
    for n in range(N):
        layer_normed(row_of(x_ND, n), norm, norm_bias, epsilon, row_of(normed_ND, n))
    first, stop = share(3 * D, team, UNIT)
    product(query_key_value, normed_ND, rounded, packed_NC, first, stop)
    for n in range(N):
        packed = span(row_of(packed_NC, n), first, stop - first)
        add_scaled(packed, span(packed_bias, first, stop - first), one, packed)
    meet(team)
    first_pair, stop_pair = share(B * H, team, 1)
    for pair in range(first_pair, stop_pair):
        b, h = pair // H, pair % H
        for n in range(b * T, (b + 1) * T):
            slot = lengths_B[b] + n - b * T
            if slot >= S:
                break
            packed, place = row_of(packed_NC, n), ((b * S + slot) * H + h) * stride
            put(span(packed, D + h * E, E), keys, place)
            put(span(packed, 2 * D + h * E, E), values, place)
            query, out = span(packed, h * E, E), span(row_of(attended_ND, n), h * E, E)
            begin = (b * S * H + h) * stride
            attend(query, keys, values, begin, H * stride, slot + 1, scores, out)
    meet(team)
    first, stop = share(D, team, UNIT)
    product(output, attended_ND, rounded, delta_ND, first, stop)
    add_biased_columns(x_ND, delta_ND, output_bias, step_size, first, stop)
    meet(team)
    for n in range(N):
        layer_normed(row_of(x_ND, n), mlp_norm, mlp_norm_bias, epsilon, row_of(normed_ND, n))
    first, stop = share(F, team, UNIT)
    product(up, normed_ND, rounded, up_NF, first, stop)
    for n in range(N):
        inner, count = span(row_of(up_NF, n), first, stop - first), stop - first
        outputs = inner, span(row_of(hidden_NF, n), first, count)
        biased_gelu(count, outputs, (inner, span(up_bias, first, count)), one)
    meet(team)
    first, stop = share(D, team, UNIT)
    product(down, hidden_NF, rounded, delta_ND, first, stop)
    add_biased_columns(x_ND, delta_ND, down_bias, step_size, first, stop)
    meet(team)


def layers_of(step: DecodeStep) -> list[tuple[Any, ...]]:
    """For each layer `layer` or `biased_layer`, and its arguments: weights, sizes, constants, keys
    and values."""
    layers: list[tuple[Any, ...]] = []
    for i in range(0, len(step.forms), 2):
        attention, mlp, slots = step.forms[i], step.forms[i + 1], step.slots[i]
        assert isinstance(attention, AttentionForm)
        assert slots is not None
        a, m = step.weights[i], step.weights[i + 1]
        constants = np.float32(attention.epsilon), np.float32(attention.step_size)
        if isinstance(mlp, GeluForm):
            packed = a.query_key_value, a.query_key_value_bias
            biased = a.norm, a.norm_bias, *packed, a.output, a.output_bias
            weights = compiled_form((*biased, *vars(m).values()))
            layers.append((biased_layer, weights, mlp.ffn, constants, *slots))
            continue
        assert isinstance(mlp, SwigluForm)
        norms = (a.norm[:0] if norm is None else norm for norm in (a.query_norm, a.key_norm))
        weights = a.norm, a.query_key_value, a.output, m.norm, m.gate_up, m.down, *norms
        columns = attention.columns, attention.key.start, attention.value.start
        sizes = attention.heads, attention.head_size, *columns, mlp.columns, mlp.up.start, mlp.ffn
        has_norms = attention.qk_norm != "none"
        layers.append((layer, compiled_form(weights), sizes, (*constants, has_norms), *slots))
    return layers


def compiled_form(weights: tuple[Any, ...]) -> tuple[Any, ...]:
    """Weights as the compiled functions take them."""
    return tuple(
        quantized.arrays_of(weight) if isinstance(weight, Quantized) else weight
        for weight in weights
    )


def scratch_floats(step: DecodeStep) -> tuple[int, int]:
    """Floats of scratch memory that `layer` or `biased_layer` needs for each new token: what a team
    shares, and what each of its parts has for itself."""
    attention, mlp = step.forms[:2]
    assert isinstance(attention, AttentionForm)
    assert isinstance(mlp, SwigluForm | GeluForm)
    assert step.slots[0] is not None
    capacity = step.slots[0].keys_BSGE.shape[1]
    columns = attention.columns + (mlp.columns if isinstance(mlp, SwigluForm) else mlp.ffn)
    dim, attended = step.x_ND.shape[1], attention.heads * attention.head_size
    rounded = quantized.rounded_floats(max(dim, attended, mlp.ffn), tokens=1)
    return columns + attended + mlp.ffn + dim, dim + capacity + LANES + rounded
