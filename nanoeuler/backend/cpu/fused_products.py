"""Matrix products, each compiled together with the op that follows it.

One call instead of two saves the Python in between, which holds up all threads of a step.

Formulas, names and shapes are those of `backend/reference.py`. `sgemm` is `Blas.sgemm`. A call
computes the rows `first` … `stop`, so that threads can share them.
"""

import numpy as np

from nanoeuler.backend.cpu import elementwise
from nanoeuler.backend.cpu.blas import product
from nanoeuler.backend.cpu.simd import ONE
from nanoeuler.system.compiling import compiled

ZERO = np.float32(0)


@compiled()
def linear(sgemm, x_NI, weight_OI, out_NO, first, stop):
    product(sgemm, x_NI[first:stop], weight_OI.T, out_NO[first:stop], ONE, ZERO)


@compiled()
def linear_backward_input(sgemm, dout_NO, weight_OI, dx_NI, scale, kept, first, stop):
    """dx = scale · dout W + kept · dx"""
    product(sgemm, dout_NO[first:stop], weight_OI, dx_NI[first:stop], scale, kept)


@compiled()
def linear_backward_weight(sgemm, dout_NO, x_NI, dweight_OI, scale, kept, first, stop):
    """The rows `first` … `stop` of dW = scale · doutᵀ x + kept · dW"""
    product(sgemm, dout_NO[:, first:stop].T, x_NI, dweight_OI[first:stop], scale, kept)


@compiled()
def linear_rope(
    sgemm, x_NI, weight_OI, out_NO, rotated_NHE, positions_N, cos_PE, sin_PE, first, stop
):
    linear(sgemm, x_NI, weight_OI, out_NO, first, stop)
    elementwise.rope(rotated_NHE, positions_N, cos_PE, sin_PE, ONE, first, stop)


@compiled()
def euler_step(sgemm, inner_NI, weight_DI, delta_ND, x_ND, step_size, norm, first, stop):
    """`norm` holds the last arguments of `elementwise.add_rms_norm` before the rows."""
    linear(sgemm, inner_NI, weight_DI, delta_ND, first, stop)
    elementwise.add_rms_norm(x_ND, delta_ND, step_size, *norm, first, stop)


@compiled()
def linear_swiglu_backward(sgemm, dx_ND, weight_DF, scale, gate_NF, up_NF, out_NF, first, stop):
    linear_backward_input(sgemm, dx_ND, weight_DF, out_NF, scale, ZERO, first, stop)
    elementwise.swiglu_backward(out_NF, gate_NF, up_NF, gate_NF, up_NF, True, out_NF, first, stop)


@compiled()
def linear_bias(sgemm, x_NI, weight_OI, bias_O, out_NO, first, stop):
    linear(sgemm, x_NI, weight_OI, out_NO, first, stop)
    elementwise.add_bias(out_NO, bias_O, first, stop)


@compiled()
def linear_gelu(sgemm, x_NI, weight_FI, bias_F, up_NF, out_NF, first, stop):
    linear(sgemm, x_NI, weight_FI, up_NF, first, stop)
    elementwise.bias_gelu(up_NF, bias_F, out_NF, first, stop)


@compiled()
def linear_gelu_backward(sgemm, dx_ND, weight_DF, scale, up_NF, out_NF, first, stop):
    linear_backward_input(sgemm, dx_ND, weight_DF, out_NF, scale, ZERO, first, stop)
    elementwise.gelu_backward(out_NF, up_NF, up_NF, True, out_NF, first, stop)


@compiled()
def biased_euler_step(
    sgemm, inner_NI, weight_DI, delta_ND, x_ND, bias_D, step_size, norm, first, stop
):
    """`norm` holds the arguments of `elementwise.layer_norm` before the rows."""
    linear(sgemm, inner_NI, weight_DI, delta_ND, first, stop)
    elementwise.add_layer_norm(x_ND, delta_ND, bias_D, step_size, norm, first, stop)
