"""Everything between the products: embedding, RMSNorm with the residual add, rotary positions, SwiGLU. One pass over memory each.

Formulas, names and shapes are those of `backend/reference.py`; every kernel works on the rows `first` … `stop`, so that threads share them.
"""

import numpy as np

from nanoeuler.backend.cpu.simd import ONE, line, sigmoid, span
from nanoeuler.compiling import FAST_MATH, compiled

SUM_ROWS = 32
"""Rows whose weight gradients are summed before they join the total: a sum of sums loses less to rounding than one long one."""


@compiled()
def embedding(ids_N, table_VD, out_ND, first, stop):
    for n in range(first, stop):
        out_ND[n] = table_VD[min(max(ids_N[n], 0), len(table_VD) - 1)]


@compiled()
def embedding_backward(ids_N, dout_ND, dtable_VD, accumulate, first, stop):
    """Columns `first` … `stop`, every row's in the order of n."""
    if not accumulate:
        dtable_VD[:, first:stop] = 0
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
def add_rms_norm(x_ND, delta_ND, step_size, weight_D, epsilon, sum_ND, out_ND, inverse_rms_N, first, stop):
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
def rms_norm_backward(dout_ND, x_ND, weight_D, inverse_rms_N, dx_ND, dweight_PD, add_to_dx, restore, out_ND, part, first, stop):
    """The weight's gradient of these rows goes to dweight[part], overwritten. `restore`: `out` receives what the forward pass gave."""
    total, some = dweight_PD[part], np.zeros_like(weight_D)
    total[:] = 0
    for n in range(first, stop):
        norm_gradient(line(dout_ND, n), line(x_ND, n), weight_D, inverse_rms_N[n], line(dx_ND, n), some, add_to_dx)
        if restore:
            weighted(line(x_ND, n), inverse_rms_N[n], weight_D, line(out_ND, n))
        if n % SUM_ROWS == SUM_ROWS - 1 or n == stop - 1:
            total += some
            some[:] = 0


@compiled(fastmath=FAST_MATH)
def turn(vector, cos, sin, sign, turned):
    """`turned` is room for the result: a loop that wrote over its input could not be vectorised."""
    half = len(cos)
    first, second = span(vector, 0, half), span(vector, half, half)
    for i in range(half):
        turned[i] = first[i] * cos[i] - second[i] * (sin[i] * sign)
    for i in range(half):
        second[i] = second[i] * cos[i] + first[i] * (sin[i] * sign)
    first[:] = turned


@compiled()
def rope(x_NHE, positions_N, cos_PE, sin_PE, sign, first, stop):
    """In place; `sign` −1 turns back."""
    turned = np.empty(cos_PE.shape[1], np.float32)
    for n in range(first, stop):
        cos, sin = line(cos_PE, positions_N[n]), line(sin_PE, positions_N[n])
        for h in range(x_NHE.shape[1]):
            turn(line(x_NHE, (n, h)), cos, sin, sign, turned)


@compiled(fastmath=FAST_MATH)
def swiglu_row(gate, up, out):
    for f in range(len(gate)):
        out[f] = gate[f] * sigmoid(gate[f]) * up[f]


@compiled()
def swiglu(gate_NF, up_NF, out_NF, first, stop):
    for n in range(first, stop):
        swiglu_row(line(gate_NF, n), line(up_NF, n), line(out_NF, n))


@compiled(fastmath=FAST_MATH)
def swiglu_gradient(dout, gate, up, dgate, dup, restore, out, sigma, silu, slope):
    """One row. The last three are room for a row each: a loop with one output, which is none of its inputs, is vectorised."""
    F = len(gate)
    for f in range(F):
        sigma[f] = sigmoid(gate[f])
    for f in range(F):
        silu[f] = gate[f] * sigma[f]
    for f in range(F):
        slope[f] = dout[f] * up[f] * (sigma[f] + silu[f] * (ONE - sigma[f]))
    for f in range(F):
        sigma[f] = silu[f] * up[f]
    for f in range(F):
        dup[f] = dout[f] * silu[f]
    dgate[:] = slope
    if restore:
        out[:] = sigma


@compiled()
def swiglu_backward(dout_NF, gate_NF, up_NF, dgate_NF, dup_NF, restore, out_NF, first, stop):
    """`restore`: `out` receives what the forward pass gave; otherwise it is not touched."""
    room = np.empty((3, gate_NF.shape[1]), np.float32)
    for n in range(first, stop):
        rows = line(dout_NF, n), line(gate_NF, n), line(up_NF, n), line(dgate_NF, n), line(dup_NF, n)
        swiglu_gradient(*rows, restore, line(out_NF, n), room[0], room[1], room[2])
