"""Elementwise functions of vectors that may overwrite their own inputs.

LLVM vectorises a plain loop only where it can prove that no iteration writes an input of a later
one. Here a vector register's worth of every input is read before any output is written, and
intermediate values stay in registers. Formulas and names are those of `backend/reference.py`.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.backend.cpu.simd import (
    FLOAT,
    LANES,
    SIZE,
    VECTOR,
    data_pointer,
    spread,
    vector_constant,
    vector_exp,
    vector_pointer,
)

CUBE, ROOT = 0.044715, math.sqrt(2 / math.pi)  # of `gelu`

Vector = Any
"""A value of LLVM: LANES floats."""


def make_map(function: Callable[..., tuple[Vector, ...]]) -> Callable[..., None]:
    """The intrinsic map(count, outputs, inputs, scalar), for i < count:

        outputs[i] = function(inputs[i], scalar)

    `outputs` and `inputs` are tuples of float32 vectors; an output may be one of the inputs.
    `function` is given LLVM's builder, a vector of each input, and a vector with the scalar in
    every lane.
    """

    @intrinsic
    def mapped(context, count, outputs, inputs, scalar):
        def generate(context, builder, signature, arguments):
            def pointers(index):
                kind, parts = signature.args[index], arguments[index]
                return [
                    data_pointer(context, builder, kind.dtype, part)
                    for part in cgutils.unpack_tuple(builder, parts)
                ]

            count = arguments[0]
            outputs, inputs = pointers(1), pointers(2)
            scalar = spread(builder, arguments[3])
            lanes = ir.Constant(SIZE, LANES)
            whole = builder.sdiv(count, lanes)
            with cgutils.for_range(builder, whole) as loop:
                start = builder.mul(loop.index, lanes)
                sources = [vector_pointer(builder, base, start) for base in inputs]
                vectors = [builder.load(source, align=4) for source in sources]
                results = function(builder, *vectors, scalar)
                for base, result in zip(outputs, results, strict=True):
                    builder.store(result, vector_pointer(builder, base, start), align=4)
            done = builder.mul(whole, lanes)
            rest = builder.sub(count, done)
            with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(SIZE, 0))):
                map_rest(builder, function, outputs, inputs, scalar, done, rest)
            return context.get_dummy_value()

        return types.void(types.intp, outputs, inputs, types.float32), generate

    return mapped


def map_rest(builder, function, outputs, inputs, scalar, done, rest):
    """The last `rest` < LANES elements, by way of vectors on the stack."""

    def copy(sources, targets):
        with cgutils.for_range(builder, rest) as loop:
            for source, target in zip(sources, targets, strict=True):
                value = builder.load(builder.gep(source, [loop.index]))
                builder.store(value, builder.gep(target, [loop.index]))

    def on_stack(number):
        """Vectors, and pointers to their first floats."""
        zeros = ir.Constant(VECTOR, None)
        vectors = [cgutils.alloca_once_value(builder, zeros) for _ in range(number)]
        return vectors, [builder.bitcast(vector, FLOAT.as_pointer()) for vector in vectors]

    vectors, floats = on_stack(len(inputs))
    copy([builder.gep(base, [done]) for base in inputs], floats)
    results = function(builder, *[builder.load(vector) for vector in vectors], scalar)
    vectors, floats = on_stack(len(outputs))
    for vector, result in zip(vectors, results, strict=True):
        builder.store(result, vector)
    copy(floats, [builder.gep(base, [done]) for base in outputs])


def sigmoid(builder, x):
    one = vector_constant(1)
    return builder.fdiv(one, builder.fadd(one, vector_exp(builder, builder.fneg(x))))


def swiglu_vector(builder, gate, up, _):
    return (builder.fmul(builder.fmul(gate, sigmoid(builder, gate)), up),)


def swiglu_gradients(builder, dout, gate, up, _):
    """dgate, dup, and the output of the forward pass."""
    sigma = sigmoid(builder, gate)
    silu = builder.fmul(gate, sigma)
    slope = builder.fadd(sigma, builder.fmul(silu, builder.fsub(vector_constant(1), sigma)))
    dgate = builder.fmul(builder.fmul(dout, up), slope)
    dup = builder.fmul(dout, silu)
    return dgate, dup, builder.fmul(silu, up)


def gelu_sigma(builder, x):
    """σ(2u), x² and the constants of `gelu_vector`."""
    square = builder.fmul(x, x)
    cubic = builder.fmul(square, vector_constant(2 * ROOT * CUBE))
    slope = builder.fadd(vector_constant(2 * ROOT), cubic)
    return sigmoid(builder, builder.fmul(x, slope)), square


def gelu_vector(builder, x, _):
    return (builder.fmul(x, gelu_sigma(builder, x)[0]),)


def biased_gelu_vector(builder, x, bias, _):
    """x + bias, and its GELU."""
    x = builder.fadd(x, bias)
    return x, *gelu_vector(builder, x, _)


def gelu_gradients(builder, dout, x, _):
    """dx, and the output of the forward pass."""
    sigma, square = gelu_sigma(builder, x)
    cubic = builder.fmul(square, vector_constant(6 * ROOT * CUBE))
    angle_slope = builder.fadd(vector_constant(2 * ROOT), cubic)
    one = vector_constant(1)
    slope = builder.fmul(builder.fmul(x, builder.fsub(one, sigma)), angle_slope)
    slope = builder.fmul(sigma, builder.fadd(one, slope))
    return builder.fmul(dout, slope), builder.fmul(x, sigma)


def rotated_halves(builder, first, second, cos, sin, sign):
    sin = builder.fmul(sin, sign)
    new_first = builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin))
    new_second = builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin))
    return new_first, new_second


def tanh(builder, x):
    """With a relative error of about 1e-7: up to 1 by Lambert's continued fraction, whose sixth
    convergent errs by less than 1e-8 there, and beyond as 2 σ(2x) − 1, which cancels near 0."""
    square = builder.fmul(x, x)

    def polynomial(*coefficients):
        total = vector_constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = builder.fadd(builder.fmul(total, square), vector_constant(coefficient))
        return total

    over, under = polynomial(21, 1260, 10395), polynomial(1, 210, 4725, 10395)
    near = builder.fdiv(builder.fmul(x, over), under)
    sigma = sigmoid(builder, builder.fadd(x, x))
    far = builder.fsub(builder.fadd(sigma, sigma), vector_constant(1))
    return builder.select(builder.fcmp_ordered("<", square, vector_constant(1)), near, far)


def soft_caps(builder, x, cap):
    """The capped value, and the slope."""
    capped = tanh(builder, builder.fdiv(x, cap))
    slope = builder.fsub(vector_constant(1), builder.fmul(capped, capped))
    return builder.fmul(cap, capped), slope


swiglu = make_map(swiglu_vector)
swiglu_gradient = make_map(swiglu_gradients)
swiglu_gradient_only = make_map(lambda *arguments: swiglu_gradients(*arguments)[:2])
gelu = make_map(gelu_vector)
biased_gelu = make_map(biased_gelu_vector)
gelu_gradient = make_map(gelu_gradients)
gelu_gradient_only = make_map(lambda *arguments: gelu_gradients(*arguments)[:1])
rotate_halves = make_map(rotated_halves)
soft_cap = make_map(soft_caps)
soft_cap_only = make_map(lambda *arguments: soft_caps(*arguments)[:1])
