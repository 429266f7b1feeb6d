"""The ops between the products: embedding, RMSNorm with the residual add, RoPE, SwiGLU.

Each is one pass over memory. Formulas, names and shapes are those of `backend/reference.py`. A
kernel computes the rows `first` … `stop`, so that threads can share them.
"""

import numpy as np

from nanoeuler.backend.cpu.simd import ONE
from nanoeuler.backend.cpu.vector_maps import rotate_halves, swiglu_gradient, swiglu_gradient_only
from nanoeuler.backend.cpu.vector_maps import swiglu as swiglu_map
from nanoeuler.backend.cpu.vectors import fill, row_of, scale_into, span
from nanoeuler.compiling import FAST_MATH, compiled

SUM_ROWS = 32
"""Rows whose weight gradients are summed before they are added to the total, which loses less to
rounding than one long sum."""


@compiled()
def embedding(ids_N, table_VD, out_ND, first, stop):
    for n in range(first, stop):
        index = min(max(ids_N[n], 0), len(table_VD) - 1)
        scale_into(row_of(table_VD, index), ONE, row_of(out_ND, n))


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


@compiled(fastmath=FAST_MATH)
def normed(x, weight, epsilon, out):
    """One row: out = weight · x / r; returns 1 / r."""
    total = np.float32(0)
    for d in range(len(x)):
        total += x[d] * x[d]
    inverse = np.float32(1) / np.sqrt(total / np.float32(len(x)) + epsilon)
    for d in range(len(x)):
        out[d] = x[d] * inverse * weight[d]
    return inverse


@compiled()
def rms_norm(x_ND, weight_D, epsilon, out_ND, inverse_rms_N, first, stop):
    for n in range(first, stop):
        inverse_rms_N[n] = normed(row_of(x_ND, n), weight_D, epsilon, row_of(out_ND, n))


@compiled(fastmath=FAST_MATH)
def add_scaled(x, delta, step_size, out):
    for d in range(len(x)):
        out[d] = x[d] + delta[d] * step_size


@compiled()
def add_rms_norm(
    x_ND, delta_ND, step_size, weight_D, epsilon, sum_ND, out_ND, inverse_rms_N, first, stop
):
    for n in range(first, stop):
        add_scaled(row_of(x_ND, n), row_of(delta_ND, n), step_size, row_of(sum_ND, n))
        inverse_rms_N[n] = normed(row_of(sum_ND, n), weight_D, epsilon, row_of(out_ND, n))


@compiled(fastmath=FAST_MATH)
def norm_gradient(dout, x, weight, inverse, dx, dweight, add_to_dx):
    """One row of `rms_norm_backward`; adds to `dweight`."""
    product = np.float32(0)
    for d in range(len(x)):
        along = dout[d] * x[d] * inverse
        dweight[d] += along
        product += along * weight[d]
    slope = product / np.float32(len(x)) * inverse
    if add_to_dx:
        for d in range(len(x)):
            dx[d] += (dout[d] * weight[d] - x[d] * slope) * inverse
    else:
        for d in range(len(x)):
            dx[d] = (dout[d] * weight[d] - x[d] * slope) * inverse


@compiled(fastmath=FAST_MATH)
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
