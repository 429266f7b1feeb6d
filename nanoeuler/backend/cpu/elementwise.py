"""Everything between the products: embedding, RMSNorm with the residual add, rotary positions, SwiGLU. One pass over memory each.

Formulas, names and shapes are those of `backend/reference.py`; every kernel works on the rows `first` … `stop`, so that threads share them.
"""

import numpy as np

from nanoeuler.backend.cpu.simd import ONE
from nanoeuler.backend.cpu.vector_maps import swiglu as swiglu_map
from nanoeuler.backend.cpu.vector_maps import swiglu_gradient, swiglu_gradient_only, turn_halves
from nanoeuler.backend.cpu.vectors import fill, line, scale_into, span
from nanoeuler.compiling import FAST_MATH, compiled

SUM_ROWS = 32
"""Rows whose weight gradients are summed before they join the total: a sum of sums loses less to rounding than one long one."""


@compiled()
def embedding(ids_N, table_VD, out_ND, first, stop):
    for n in range(first, stop):
        scale_into(line(table_VD, min(max(ids_N[n], 0), len(table_VD) - 1)), ONE, line(out_ND, n))


@compiled()
def embedding_backward(ids_N, dout_ND, dtable_VD, accumulate, first, stop):
    """Columns `first` … `stop`, every row's in the order of n."""
    if not accumulate:
        for row in range(len(dtable_VD)):
            fill(span(line(dtable_VD, row), first, stop - first), np.float32(0))
    for n in range(len(ids_N)):
        target, source = line(dtable_VD, ids_N[n]), line(dout_ND, n)
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
        inverse_rms_N[n] = normed(line(x_ND, n), weight_D, epsilon, line(out_ND, n))


@compiled(fastmath=FAST_MATH)
def add_scaled(x, delta, step_size, out):
    for d in range(len(x)):
        out[d] = x[d] + delta[d] * step_size


@compiled()
def add_rms_norm(
    x_ND, delta_ND, step_size, weight_D, epsilon, sum_ND, out_ND, inverse_rms_N, first, stop
):
    for n in range(first, stop):
        add_scaled(line(x_ND, n), line(delta_ND, n), step_size, line(sum_ND, n))
        inverse_rms_N[n] = normed(line(sum_ND, n), weight_D, epsilon, line(out_ND, n))


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
    """The weight's gradient of these rows goes to sums[2 · part], the row behind it is room. `restore`: `out` receives what the forward pass gave."""
    total, some = line(sums_PD, 2 * part), line(sums_PD, 2 * part + 1)
    fill(total, np.float32(0))
    fill(some, np.float32(0))
    for n in range(first, stop):
        norm_gradient(
            line(dout_ND, n),
            line(x_ND, n),
            weight_D,
            inverse_rms_N[n],
            line(dx_ND, n),
            some,
            add_to_dx,
        )
        if restore:
            weighted(line(x_ND, n), inverse_rms_N[n], weight_D, line(out_ND, n))
        if n % SUM_ROWS == SUM_ROWS - 1 or n == stop - 1:
            add_scaled(total, some, ONE, total)
            fill(some, np.float32(0))


@compiled()
def turn(vector, cos, sin, sign):
    half = len(cos)
    halves = span(vector, 0, half), span(vector, half, half)
    turn_halves(half, halves, (*halves, cos, sin), sign)


@compiled()
def rope(x_NHE, positions_N, cos_PE, sin_PE, sign, first, stop):
    """In place; `sign` −1 turns back."""
    for n in range(first, stop):
        cos, sin = line(cos_PE, positions_N[n]), line(sin_PE, positions_N[n])
        for h in range(x_NHE.shape[1]):
            turn(line(x_NHE, (n, h)), cos, sin, sign)


@compiled()
def swiglu(gate_NF, up_NF, out_NF, first, stop):
    for n in range(first, stop):
        swiglu_map(gate_NF.shape[1], (line(out_NF, n),), (line(gate_NF, n), line(up_NF, n)), ONE)


@compiled()
def swiglu_backward(dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, restore, out_NF, first, stop):
    """`restore`: `out` receives what the forward pass gave; otherwise it is not touched."""
    for n in range(first, stop):
        inputs, gradients = (
            (line(dout_NF, n), line(gate_NF, n), line(up_NF, n)),
            (line(dgate_NF, n), line(dup_NF, n)),
        )
        if restore:
            swiglu_gradient(len(inputs[0]), (*gradients, line(out_NF, n)), inputs, ONE)
        else:
            swiglu_gradient_only(len(inputs[0]), gradients, inputs, ONE)
