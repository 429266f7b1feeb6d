"""Matrix products, each with what follows it, as one call: what Python does between two calls is time that a thread's share of a step does not shrink with.

Formulas, names and shapes are those of `backend/reference.py`; `address`, `wide` and `unpacked` are BLAS's (blas.py), and a call computes the rows
`first` … `stop`, so that threads share them.
"""

import numpy as np

from nanoeuler.backend.cpu import elementwise
from nanoeuler.backend.cpu.blas import product
from nanoeuler.backend.cpu.simd import ONE
from nanoeuler.compiling import compiled

ZERO = np.float32(0)


@compiled()
def linear(address, wide, unpacked, x_NI, weight_OI, out_NO, first, stop):
    product(address, wide, unpacked, x_NI[first:stop], weight_OI.T, out_NO[first:stop], ONE, ZERO)


@compiled()
def linear_backward_input(
    address, wide, unpacked, dout_NO, weight_OI, dx_NI, scale, kept, first, stop
):
    """dx = scale · dout W + kept · dx"""
    product(address, wide, unpacked, dout_NO[first:stop], weight_OI, dx_NI[first:stop], scale, kept)


@compiled()
def linear_backward_weight(
    address, wide, unpacked, dout_NO, x_NI, dweight_OI, scale, kept, first, stop
):
    """The rows `first` … `stop` of dW = scale · doutᵀ x + kept · dW"""
    product(
        address, wide, unpacked, dout_NO[:, first:stop].T, x_NI, dweight_OI[first:stop], scale, kept
    )


@compiled()
def linear_rope(
    address,
    wide,
    unpacked,
    x_NI,
    weight_OI,
    out_NO,
    rotated_NHE,
    positions_N,
    cos_PE,
    sin_PE,
    first,
    stop,
):
    linear(address, wide, unpacked, x_NI, weight_OI, out_NO, first, stop)
    elementwise.rope(rotated_NHE, positions_N, cos_PE, sin_PE, ONE, first, stop)


@compiled()
def euler_step(
    address,
    wide,
    unpacked,
    inner_NI,
    weight_DI,
    delta_ND,
    x_ND,
    step_size,
    norm_D,
    epsilon,
    sum_ND,
    out_ND,
    inverse_rms_N,
    first,
    stop,
):
    linear(address, wide, unpacked, inner_NI, weight_DI, delta_ND, first, stop)
    elementwise.add_rms_norm(
        x_ND, delta_ND, step_size, norm_D, epsilon, sum_ND, out_ND, inverse_rms_N, first, stop
    )


@compiled()
def linear_swiglu_backward(
    address, wide, unpacked, dx_ND, weight_DF, scale, gate_NF, up_NF, out_NF, first, stop
):
    linear_backward_input(
        address, wide, unpacked, dx_ND, weight_DF, out_NF, scale, ZERO, first, stop
    )
    elementwise.swiglu_backward(out_NF, gate_NF, up_NF, gate_NF, up_NF, True, out_NF, first, stop)
