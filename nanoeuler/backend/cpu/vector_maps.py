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
    multiply_add,
    spread,
    sum_of_lanes,
    vector_constant,
    vector_exp,
    vector_pointer,
)

CUBE, ROOT = 0.044715, math.sqrt(2 / math.pi)  # of `gelu`

Vector = Any
"""A value of LLVM: LANES floats."""


TURNS = 4
"""Sums of the same numbers that take turns, so that an addition need not wait for the one before.
"""


def make_map(function: Callable[..., tuple[Vector, ...]], sums: int = 0) -> Callable[..., Any]:
    """The intrinsic map(count, outputs, inputs, scalar), for i < count:

        outputs[i] = function(inputs[i], scalar)

    `outputs` and `inputs` are tuples of float32 vectors; an output may be one of the inputs.
    `function` is given LLVM's builder, a vector of each input, and a vector with the scalar in
    every lane; or one for each of a tuple of scalars. The last `sums` of its results, or products
    of two vectors, are added up and returned, as a number or a tuple: in an order that `count`
    alone decides.
    """

    @intrinsic
    def mapped(context, count, outputs, inputs, scalar):
        def generate(context, builder, signature, arguments):
            def pointers(index):
                kinds = signature.args[index].types
                parts = cgutils.unpack_tuple(builder, arguments[index])
                return [
                    data_pointer(context, builder, kind, part)
                    for kind, part in zip(kinds, parts, strict=True)
                ]

            count = arguments[0]
            outputs, inputs = pointers(1), pointers(2)
            numbers = [arguments[3]]
            if isinstance(scalar, types.BaseTuple):
                numbers = cgutils.unpack_tuple(builder, arguments[3])
            scalars = [spread(builder, number) for number in numbers]
            zeros = ir.Constant(VECTOR, None)
            totals = [
                [cgutils.alloca_once_value(builder, zeros) for _ in range(sums)]
                for _ in range(TURNS if sums else 1)
            ]

            def add(values, turn):
                for value, total in zip(values, totals[turn], strict=True):
                    before = builder.load(total)
                    if isinstance(value, tuple):
                        left, right = value
                        after = multiply_add(builder, left, right, before)
                    else:
                        after = builder.fadd(before, value)
                    builder.store(after, total)

            def work(start, turn):
                sources = [vector_pointer(builder, base, start) for base in inputs]
                vectors = [builder.load(source, align=4) for source in sources]
                results = function(builder, *vectors, *scalars)
                for base, result in zip(outputs, results, strict=False):
                    builder.store(result, vector_pointer(builder, base, start), align=4)
                add(results[len(outputs) :], turn)

            def each(first, steps, turns):
                """Take vectors from `first` on, as many together as there are turns."""
                with cgutils.for_range(builder, steps) as loop:
                    start = builder.add(first, builder.mul(loop.index, lanes(turns)))
                    for turn in range(turns):
                        work(builder.add(start, lanes(turn)), turn)
                return builder.add(first, builder.mul(steps, lanes(turns)))

            done = ir.Constant(SIZE, 0)
            if sums:
                done = each(done, builder.sdiv(count, lanes(TURNS)), TURNS)
            done = each(done, builder.sdiv(builder.sub(count, done), lanes(1)), 1)
            rest = builder.sub(count, done)
            with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(SIZE, 0))):
                parts = map_rest(builder, function, outputs, inputs, scalars, done, rest)
                add(parts, 0)
            if not sums:
                return context.get_dummy_value()
            found = []
            for turns in zip(*totals, strict=True):
                first, second, third, fourth = map(builder.load, turns)
                both = builder.fadd(first, second), builder.fadd(third, fourth)
                found.append(sum_of_lanes(builder, builder.fadd(*both)))
            if sums == 1:
                return found[0]
            return context.make_tuple(builder, signature.return_type, found)

        number = types.float32
        result = (types.void, number)[sums] if sums < 2 else types.UniTuple(number, sums)
        return result(types.intp, outputs, inputs, scalar), generate

    return mapped


def lanes(vectors: int) -> ir.Constant:
    """The floats of so many vectors."""
    return ir.Constant(SIZE, vectors * LANES)


def map_rest(builder, function, outputs, inputs, scalars, done, rest):
    """The last `rest` < LANES elements, by way of vectors on the stack. Returns what is to be
    summed, with zeros behind them."""

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
    results = function(builder, *[builder.load(vector) for vector in vectors], *scalars)
    vectors, floats = on_stack(len(outputs))
    for vector, result in zip(vectors, results, strict=False):
        builder.store(result, vector)
    copy(floats, [builder.gep(base, [done]) for base in outputs])
    indices = ir.Constant(ir.VectorType(SIZE, LANES), list(range(LANES)))
    inside = builder.icmp_signed("<", indices, spread(builder, rest))
    zeros = ir.Constant(VECTOR, None)

    def kept(part):
        if isinstance(part, tuple):
            return kept(part[0]), part[1]
        return builder.select(inside, part, zeros)

    return [kept(part) for part in results[len(outputs) :]]


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


def norm_slopes(builder, dout, x, weight, dweight, inverse):
    """RMSNorm's backward pass: dweight, and the terms of the row's slope."""
    along = builder.fmul(builder.fmul(dout, x), inverse)
    return builder.fadd(dweight, along), (along, weight)


def layer_norm_slopes(builder, dout, x, weight, dweight, dbias, mean, inverse):
    """LayerNorm's backward pass: dweight, dbias, and the terms of the row's slope and level."""
    unit = builder.fmul(builder.fsub(x, mean), inverse)
    gradient = builder.fmul(dout, weight)
    dweight = multiply_add(builder, dout, unit, dweight)
    return dweight, builder.fadd(dbias, dout), (gradient, unit), gradient


def squared_distance(builder, x, mean):
    distance = builder.fsub(x, mean)
    return ((distance, distance),)


def shifted_exponential(builder, x, top):
    return (vector_exp(builder, builder.fsub(x, top)),)


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
norm_sums = make_map(norm_slopes, sums=1)
layer_norm_sums = make_map(layer_norm_slopes, sums=2)
sum_of = make_map(lambda builder, x, _: (x,), sums=1)
sum_of_products = make_map(lambda builder, x, y, _: ((x, y),), sums=1)
sum_of_squared_distances = make_map(squared_distance, sums=1)
sum_of_exponentials = make_map(shifted_exponential, sums=1)
