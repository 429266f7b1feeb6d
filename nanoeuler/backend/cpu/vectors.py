"""Parts of arrays as contiguous vectors, and the loops over them that LLVM vectorises by itself.

`line` and `span` cost nothing where a slice of Numba's counts references, and tell LLVM that elements are neighbours. Assigning to a
slice would compile Numba's general copy, with its errors and their texts, a second for every kernel: `fill` and `scale_into` take its place.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from nanoeuler.backend.cpu.simd import SIZE
from nanoeuler.compiling import FAST_MATH, compiled


def vector_at(context, builder, address, length):
    """A contiguous float32 array over memory that somebody else keeps alive."""
    array = context.make_array(LINE)(context, builder)
    data = builder.bitcast(address, array.data.type)
    populate_array(
        array,
        data=data,
        shape=[length],
        strides=[ir.Constant(SIZE, 4)],
        itemsize=ir.Constant(SIZE, 4),
        meminfo=None,
    )
    return array._getvalue()


LINE = types.Array(types.float32, 1, "C")


@intrinsic
def span(context, values, at, count):
    """values[at : at + count] of a float32 vector, without the cost of a slice."""

    def generate(context, builder, signature, arguments):
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return vector_at(context, builder, builder.gep(base, [arguments[1]]), arguments[2])

    return LINE(values, types.intp, types.intp), generate


@intrinsic
def line(context, x, index):
    """x[index], all axes but the last given: a contiguous vector. A slice of columns has whole rows too, which Numba can't see, and so would not vectorise."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        kinds = (
            signature.args[1].types
            if isinstance(signature.args[1], types.BaseTuple)
            else [signature.args[1]]
        )
        places = (
            cgutils.unpack_tuple(builder, arguments[1])
            if isinstance(signature.args[1], types.BaseTuple)
            else [arguments[1]]
        )
        address = builder.ptrtoint(array.data, SIZE)
        for place, kind, stride in zip(
            places, kinds, cgutils.unpack_tuple(builder, array.strides), strict=False
        ):
            address = builder.add(
                address, builder.mul(context.cast(builder, place, kind, types.intp), stride)
            )
        length = cgutils.unpack_tuple(builder, array.shape)[-1]
        return vector_at(context, builder, builder.inttoptr(address, array.data.type), length)

    return LINE(x, index), generate


@intrinsic
def any_layout(context, x):
    """x itself, with the type of an array of any layout: functions that take it are compiled once, not for contiguous arrays again."""

    def generate(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return types.Array(x.dtype, x.ndim, "A")(x), generate


@intrinsic
def ask_for(context, values, at):
    """Have the processor fetch the cache line of values[at], so that it is there when it is read a little later."""

    def generate(context, builder, signature, arguments):
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(base, [arguments[1]]), pointer)
        builder.call(
            prefetch, [place, *(ir.Constant(flag, value) for value in (0, 2, 1))]
        )  # to read, into the second-level cache, of data
        return context.get_dummy_value()

    return types.void(values, types.intp), generate


@compiled()
def fill(values, value):
    for i in range(len(values)):
        values[i] = value


@compiled(fastmath=FAST_MATH)
def scale_into(values, factor, out):
    for i in range(len(values)):
        out[i] = values[i] * factor


@compiled(fastmath=FAST_MATH)
def dot(a, b):
    total = np.float32(0)
    for e in range(len(a)):
        total += a[e] * b[e]
    return total
