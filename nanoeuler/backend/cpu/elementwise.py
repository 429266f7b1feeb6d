"""The ops between the products: embedding, norms with the residual add, RoPE, SwiGLU, GELU.

Each is one pass over memory. Formulas, names and shapes are those of `backend/reference.py`. A
kernel computes the rows `first` … `stop`, so that threads can share them.
"""

import numpy as np

from nanoeuler.backend.cpu.simd import ONE
from nanoeuler.backend.cpu.vector_maps import (
    biased_gelu,
    gelu_gradient,
    gelu_gradient_only,
    layer_norm_sums,
    norm_sums,
    rotate_halves,
    soft_cap_only,
    sum_of,
    sum_of_squared_distances,
    swiglu_gradient,
    swiglu_gradient_only,
)
from nanoeuler.backend.cpu.vector_maps import gelu as gelu_map
from nanoeuler.backend.cpu.vector_maps import soft_cap as soft_cap_map
from nanoeuler.backend.cpu.vector_maps import swiglu as swiglu_map
from nanoeuler.backend.cpu.vectors import dot, fill, row_of, scale_into, span
from nanoeuler.system.compiling import compiled

SUM_ROWS = 32
"""Rows whose weight gradients are summed before they are added to the total, which loses less to
rounding than one long sum."""


@compiled()
def add_scaled(x, delta, step_size, out):
    for d in range(len(x)):
        out[d] = x[d] + delta[d] * step_size


@compiled()
def mixed(word):
    """The hash of backend/dropout.py, of a uint32."""
    word = np.uint32(np.uint32(word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    word = np.uint32(np.uint32(word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(word ^ (word >> np.uint32(16)))


@compiled()
def dropout(x_NI, seeds_N, salt, threshold, first, stop):
    """In place: a second array, which could be the same, would keep it from being vectorised."""
    for n in range(first, stop):
        of_row = mixed(np.uint32(np.uint32(seeds_N[n]) ^ mixed(np.uint32(salt))))
        x = row_of(x_NI, n)
        for i in range(len(x)):
            # a number that is none stays none
            x[i] *= np.float32(mixed(np.uint32(of_row ^ mixed(np.uint32(i)))) >= threshold)


@compiled()
def embedding(ids_N, table_VD, out_ND, first, stop):
    for n in range(first, stop):
        index = min(max(ids_N[n], 0), len(table_VD) - 1)
        scale_into(row_of(table_VD, index), ONE, row_of(out_ND, n))


@compiled()
def embedding_at(ids_N, table_VD, positions_N, position_table_PD, out_ND, first, stop):
    for n in range(first, stop):
        index = min(max(ids_N[n], 0), len(table_VD) - 1)
        position = min(positions_N[n], len(position_table_PD) - 1)
        out = row_of(out_ND, n)
        add_scaled(row_of(table_VD, index), row_of(position_table_PD, position), ONE, out)


@compiled()
def embedding_backward(ids_N, dout_ND, dtable_VD, accumulate, first, stop):
    """Columns `first` … `stop`; a row's gradients are added in the order of n."""
    if not accumulate:
        for row in range(len(dtable_VD)):
            fill(span(row_of(dtable_VD, row), first, stop - first), np.float32(0))
    for n in range(len(ids_N)):
        target = row_of(dtable_VD, ids_N[n])
        source = row_of(dout_ND, n)
        for d in range(first, stop):
            target[d] += source[d]


@compiled()
def normed(x, weight, epsilon, out):
    """One row: out = weight · x / r; returns 1 / r."""
    inverse = np.float32(1) / np.sqrt(dot(x, x) / np.float32(len(x)) + epsilon)
    for d in range(len(x)):
        out[d] = x[d] * inverse * weight[d]
    return inverse


@compiled()
def rms_norm(x_ND, weight_D, epsilon, out_ND, inverse_rms_N, first, stop):
    for n in range(first, stop):
        inverse_rms_N[n] = normed(row_of(x_ND, n), weight_D, epsilon, row_of(out_ND, n))


@compiled()
def add_rms_norm(
    x_ND, delta_ND, step_size, weight_D, epsilon, sum_ND, out_ND, inverse_rms_N, first, stop
):
    for n in range(first, stop):
        add_scaled(row_of(x_ND, n), row_of(delta_ND, n), step_size, row_of(sum_ND, n))
        inverse_rms_N[n] = normed(row_of(sum_ND, n), weight_D, epsilon, row_of(out_ND, n))


@compiled()
def norm_gradient(dout, x, weight, inverse, dx, dweight, add_to_dx):
    """One row of `rms_norm_backward`; adds to `dweight`."""
    product = norm_sums(len(x), (dweight,), (dout, x, weight, dweight), inverse)
    slope = product / np.float32(len(x)) * inverse
    if add_to_dx:
        for d in range(len(x)):
            dx[d] += (dout[d] * weight[d] - x[d] * slope) * inverse
    else:
        for d in range(len(x)):
            dx[d] = (dout[d] * weight[d] - x[d] * slope) * inverse


@compiled()
def weighted(x, factor, weight, out):
    for d in range(len(x)):
        out[d] = x[d] * factor * weight[d]


@compiled()
def rms_norm_backward(
    dout_ND,
    x_ND,
    weight_D,
    inverse_rms_N,
    dx_ND,
    sums_PD,
    add_to_dx,
    restore,
    out_ND,
    part,
    first,
    stop,
):
    """The gradient of the weight goes to sums[2 · part]; the row after it is scratch memory.

    `restore`: `out` receives the output of the forward pass.
    """
    total = row_of(sums_PD, 2 * part)
    partial = row_of(sums_PD, 2 * part + 1)
    fill(total, np.float32(0))
    fill(partial, np.float32(0))
    for n in range(first, stop):
        dout, x, dx = row_of(dout_ND, n), row_of(x_ND, n), row_of(dx_ND, n)
        norm_gradient(dout, x, weight_D, inverse_rms_N[n], dx, partial, add_to_dx)
        if restore:
            weighted(x, inverse_rms_N[n], weight_D, row_of(out_ND, n))
        if n % SUM_ROWS == SUM_ROWS - 1 or n == stop - 1:
            add_scaled(total, partial, ONE, total)
            fill(partial, np.float32(0))


@compiled()
def rotate(vector, cos, sin, sign):
    half = len(cos)
    halves = span(vector, 0, half), span(vector, half, half)
    rotate_halves(half, halves, (*halves, cos, sin), sign)


@compiled()
def rope(x_NHE, positions_N, cos_PE, sin_PE, sign, first, stop):
    """In place; with `sign` −1 it rotates back."""
    for n in range(first, stop):
        cos, sin = row_of(cos_PE, positions_N[n]), row_of(sin_PE, positions_N[n])
        for h in range(x_NHE.shape[1]):
            rotate(row_of(x_NHE, (n, h)), cos, sin, sign)


@compiled()
def swiglu(gate_NF, up_NF, out_NF, first, stop):
    for n in range(first, stop):
        inputs = row_of(gate_NF, n), row_of(up_NF, n)
        swiglu_map(gate_NF.shape[1], (row_of(out_NF, n),), inputs, ONE)


@compiled()
def swiglu_backward(dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, restore, out_NF, first, stop):
    """`restore`: `out` receives the output of the forward pass; otherwise it is not touched."""
    F = gate_NF.shape[1]
    for n in range(first, stop):
        inputs = row_of(dout_NF, n), row_of(gate_NF, n), row_of(up_NF, n)
        gradients = row_of(dgate_NF, n), row_of(dup_NF, n)
        if restore:
            swiglu_gradient(F, (*gradients, row_of(out_NF, n)), inputs, ONE)
        else:
            swiglu_gradient_only(F, gradients, inputs, ONE)


@compiled()
def gelu(x_NF, out_NF, first, stop):
    for n in range(first, stop):
        gelu_map(x_NF.shape[1], (row_of(out_NF, n),), (row_of(x_NF, n),), ONE)


@compiled()
def bias_gelu(up_NF, bias_F, out_NF, first, stop):
    """up += bias, out = gelu(up)"""
    for n in range(first, stop):
        up = row_of(up_NF, n)
        biased_gelu(len(bias_F), (up, row_of(out_NF, n)), (up, bias_F), ONE)


@compiled()
def gelu_backward(dout_NF, x_NF, dx_NF, restore, out_NF, first, stop):
    """`restore`: as in `swiglu_backward`."""
    F = x_NF.shape[1]
    for n in range(first, stop):
        inputs, dx = (row_of(dout_NF, n), row_of(x_NF, n)), row_of(dx_NF, n)
        if restore:
            gelu_gradient(F, (dx, row_of(out_NF, n)), inputs, ONE)
        else:
            gelu_gradient_only(F, (dx,), inputs, ONE)


@compiled()
def soft_cap(x_NV, cap, slopes, slope_NV, first, stop):
    """`slopes`: `slope` receives them; otherwise it is not touched."""
    for n in range(first, stop):
        x = row_of(x_NV, n)
        if slopes:
            soft_cap_map(len(x), (x, row_of(slope_NV, n)), (x,), cap)
        else:
            soft_cap_only(len(x), (x,), (x,), cap)


# ---- biases


@compiled()
def add_bias(out_NO, bias_O, first, stop):
    for n in range(first, stop):
        out = row_of(out_NO, n)
        add_scaled(out, bias_O, ONE, out)


@compiled()
def bias_backward(dout_NO, scale, accumulate, dbias_O, sums_2O, first, stop):
    """Columns `first` … `stop`; `sums` is scratch memory."""
    count = stop - first
    total = span(row_of(sums_2O, 0), first, count)
    partial = span(row_of(sums_2O, 1), first, count)
    fill(total, np.float32(0))
    fill(partial, np.float32(0))
    rows = len(dout_NO)
    for n in range(rows):
        add_scaled(partial, span(row_of(dout_NO, n), first, count), ONE, partial)
        if n % SUM_ROWS == SUM_ROWS - 1 or n == rows - 1:
            add_scaled(total, partial, ONE, total)
            fill(partial, np.float32(0))
    dbias = span(dbias_O, first, count)
    if accumulate:
        add_scaled(dbias, total, scale, dbias)
    else:
        scale_into(total, scale, dbias)


# ---- LayerNorm


@compiled()
def mean_of(x):
    return sum_of(len(x), (), (x,), ONE) / np.float32(len(x))


@compiled()
def layer_normed(x, weight, bias, epsilon, out):
    """One row: out = weight · (x − mean) / r + bias; returns 1 / r."""
    mean = mean_of(x)
    total = sum_of_squared_distances(len(x), (), (x,), mean)
    inverse = np.float32(1) / np.sqrt(total / np.float32(len(x)) + epsilon)
    for d in range(len(x)):
        out[d] = (x[d] - mean) * inverse * weight[d] + bias[d]
    return inverse


@compiled()
def layer_norm(x_ND, weight_D, bias_D, epsilon, out_ND, inverse_rms_N, first, stop):
    for n in range(first, stop):
        x, out = row_of(x_ND, n), row_of(out_ND, n)
        inverse_rms_N[n] = layer_normed(x, weight_D, bias_D, epsilon, out)


@compiled()
def add_biased(x, delta, bias, step_size, out):
    for d in range(len(x)):
        out[d] = x[d] + (delta[d] + bias[d]) * step_size


@compiled()
def add_layer_norm(x_ND, delta_ND, step_bias_D, step_size, norm, first, stop):
    """`norm` holds the arguments of `layer_norm` before the rows."""
    sum_ND = norm[0]
    for n in range(first, stop):
        x, delta = row_of(x_ND, n), row_of(delta_ND, n)
        add_biased(x, delta, step_bias_D, step_size, row_of(sum_ND, n))
        layer_norm(*norm, n, n + 1)


@compiled()
def layer_norm_gradient(dout, x, weight, inverse, dx, dweight, dbias, add_to_dx):
    """One row of `layer_norm_backward`; adds to `dweight` and `dbias`. Returns the row's mean."""
    mean = mean_of(x)
    inputs = dout, x, weight, dweight, dbias
    product, total = layer_norm_sums(len(x), (dweight, dbias), inputs, (mean, inverse))
    slope = product / np.float32(len(x)) * inverse
    level = total / np.float32(len(x))
    if add_to_dx:
        for d in range(len(x)):
            dx[d] += (dout[d] * weight[d] - level - (x[d] - mean) * slope) * inverse
    else:
        for d in range(len(x)):
            dx[d] = (dout[d] * weight[d] - level - (x[d] - mean) * slope) * inverse
    return mean


@compiled()
def weighted_and_biased(x, mean, factor, weight, bias, out):
    for d in range(len(x)):
        out[d] = (x[d] - mean) * factor * weight[d] + bias[d]


@compiled()
def layer_norm_backward(
    dout_ND, norm, dx_ND, sums_PD, add_to_dx, restore, out_ND, part, first, stop
):
    """The gradients of weight and bias go to sums[4 · part] and the row after it; the next two rows
    are scratch memory. `norm` and `restore`: as above.
    """
    x_ND, weight_D, bias_D, _, _, inverse_rms_N = norm
    totals = row_of(sums_PD, 4 * part), row_of(sums_PD, 4 * part + 1)
    partials = row_of(sums_PD, 4 * part + 2), row_of(sums_PD, 4 * part + 3)
    for i in range(2):
        fill(totals[i], np.float32(0))
        fill(partials[i], np.float32(0))
    for n in range(first, stop):
        dout, x, dx = row_of(dout_ND, n), row_of(x_ND, n), row_of(dx_ND, n)
        inverse = inverse_rms_N[n]
        mean = layer_norm_gradient(dout, x, weight_D, inverse, dx, *partials, add_to_dx)
        if restore:
            weighted_and_biased(x, mean, inverse, weight_D, bias_D, row_of(out_ND, n))
        if n % SUM_ROWS == SUM_ROWS - 1 or n == stop - 1:
            for i in range(2):
                add_scaled(totals[i], partials[i], ONE, totals[i])
                fill(partials[i], np.float32(0))
