"""Elementwise functions of rows that may write over their own inputs, with everything in between kept in registers.

LLVM vectorises a plain loop only where it can prove that no output is an input of a later turn. Here a vector's worth of every
input is read before anything is written. Formulas and names are those of `backend/reference.py`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.backend.cpu.simd import FLOAT, LANES, SIZE, VECTOR, spread, vector_exp

Vector = Any
"""A value of LLVM: LANES floats."""


def make_map(function: Callable[..., tuple[Vector, ...]]) -> Any:
    """The intrinsic map(count, outputs, inputs, scalar): outputs[i] = function(inputs[i], scalar) for i < count.

    `outputs` and `inputs` are tuples of float32 vectors; an output may be one of the inputs. `function` gets LLVM's builder, a
    vector of every input, and the scalar in every lane.
    """

    @intrinsic
    def mapped(context, count, outputs, inputs, scalar):
        def generate(context, builder, signature, arguments):
            def addresses(index):
                kind = signature.args[index]
                return [
                    context.make_array(kind.dtype)(context, builder, value).data
                    for value in cgutils.unpack_tuple(builder, arguments[index])
                ]

            def vector_of(base, place):
                return builder.bitcast(builder.gep(base, [place]), VECTOR.as_pointer())

            outputs, inputs, scalar = addresses(1), addresses(2), spread(builder, arguments[3])
            whole = builder.sdiv(arguments[0], ir.Constant(SIZE, LANES))
            with cgutils.for_range(builder, whole) as loop:
                place = builder.mul(loop.index, ir.Constant(SIZE, LANES))
                results = function(
                    builder,
                    *[builder.load(vector_of(base, place), align=4) for base in inputs],
                    scalar,
                )
                for base, result in zip(outputs, results, strict=True):
                    builder.store(result, vector_of(base, place), align=4)
            # what is left over goes through vectors of its own
            done = builder.mul(whole, ir.Constant(SIZE, LANES))
            rest = builder.sub(arguments[0], done)
            with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(SIZE, 0))):

                def copy(sources, targets):
                    with cgutils.for_range(builder, rest) as loop:
                        for source, target in zip(sources, targets, strict=True):
                            builder.store(
                                builder.load(builder.gep(source, [loop.index])),
                                builder.gep(target, [loop.index]),
                            )

                def rooms(number):
                    vectors = [
                        cgutils.alloca_once_value(builder, ir.Constant(VECTOR, None))
                        for _ in range(number)
                    ]
                    return vectors, [
                        builder.bitcast(vector, FLOAT.as_pointer()) for vector in vectors
                    ]

                vectors, floats = rooms(len(inputs))
                copy([builder.gep(base, [done]) for base in inputs], floats)
                results = function(builder, *[builder.load(vector) for vector in vectors], scalar)
                vectors, floats = rooms(len(outputs))
                for vector, result in zip(vectors, results, strict=True):
                    builder.store(result, vector)
                copy(floats, [builder.gep(base, [done]) for base in outputs])
            return context.get_dummy_value()

        return types.void(types.intp, outputs, inputs, types.float32), generate

    return mapped


def sigmoid(builder, x):
    one = ir.Constant(VECTOR, [1.0] * LANES)
    return builder.fdiv(one, builder.fadd(one, vector_exp(builder, builder.fneg(x))))


def swiglu_vector(builder, gate, up, _):
    return (builder.fmul(builder.fmul(gate, sigmoid(builder, gate)), up),)


def swiglu_gradients(builder, dout, gate, up, _):
    """(dgate, dup, what the forward pass gave)"""
    sigma = sigmoid(builder, gate)
    silu = builder.fmul(gate, sigma)
    slope = builder.fadd(
        sigma, builder.fmul(silu, builder.fsub(ir.Constant(VECTOR, [1.0] * LANES), sigma))
    )
    return (
        builder.fmul(builder.fmul(dout, up), slope),
        builder.fmul(dout, silu),
        builder.fmul(silu, up),
    )


def turned_halves(builder, first, second, cos, sin, sign):
    sin = builder.fmul(sin, sign)
    return builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin)), builder.fadd(
        builder.fmul(second, cos), builder.fmul(first, sin)
    )


swiglu, swiglu_gradient, turn_halves = (
    make_map(swiglu_vector),
    make_map(swiglu_gradients),
    make_map(turned_halves),
)
swiglu_gradient_only = make_map(lambda *arguments: swiglu_gradients(*arguments)[:2])
