"""Parts of arrays as contiguous vectors, and loops over them that LLVM vectorises by itself.

`row_of` and `span` cost nothing, where a slice of Numba's counts references. They also tell LLVM
that the elements are neighbours. `fill` and `scale_into` stand in for assignments to a slice: those
compile Numba's general copy with its error messages, which takes a second for every kernel.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from nanoeuler.backend.cpu.simd import ONE, SIZE, data_pointer
from nanoeuler.backend.cpu.vector_maps import sum_of_products
from nanoeuler.system.compiling import compiled

FLOAT_VECTOR = types.Array(types.float32, 1, "C")


def borrowed_vector(context, builder, pointer, length):
    """A contiguous float32 vector over memory that another array keeps alive."""
    array = context.make_array(FLOAT_VECTOR)(context, builder)
    populate_array(
        array,
        data=builder.bitcast(pointer, array.data.type),
        shape=[length],
        strides=[ir.Constant(SIZE, 4)],
        itemsize=ir.Constant(SIZE, 4),
        meminfo=None,
    )
    return array._getvalue()


@intrinsic
def span(context, values, at, count):
    """values[at : at + count] of a float32 vector, without the cost of a slice."""

    def generate(context, builder, signature, arguments):
        values, at, count = arguments
        base = data_pointer(context, builder, signature.args[0], values)
        return borrowed_vector(context, builder, builder.gep(base, [at]), count)

    return FLOAT_VECTOR(values, types.intp, types.intp), generate


@intrinsic
def row_of(context, x, index):
    """x[index] as a contiguous vector; `index` covers all axes but the last.

    The rows of a slice of columns are contiguous, too, but Numba cannot know it, and would not
    vectorise loops over them.
    """

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        array = context.make_array(array_type)(context, builder, arguments[0])
        if isinstance(index_type, types.BaseTuple):
            indices = cgutils.unpack_tuple(builder, arguments[1])
            index_types = index_type.types
        else:
            indices, index_types = [arguments[1]], [index_type]
        strides = cgutils.unpack_tuple(builder, array.strides)
        address = builder.ptrtoint(array.data, SIZE)
        for value, value_type, stride in zip(indices, index_types, strides, strict=False):
            steps = context.cast(builder, value, value_type, types.intp)
            address = builder.add(address, builder.mul(steps, stride))
        pointer = builder.inttoptr(address, array.data.type)
        length = cgutils.unpack_tuple(builder, array.shape)[-1]
        return borrowed_vector(context, builder, pointer, length)

    return FLOAT_VECTOR(x, index), generate


@intrinsic
def any_layout(context, x):
    """x itself, typed as an array of any memory layout.

    Functions that take it are compiled once, and not for contiguous arrays again.
    """

    def generate(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return types.Array(x.dtype, x.ndim, "A")(x), generate


@intrinsic
def prefetch(context, values, at):
    """Have the processor fetch the cache line of values[at] before it is read."""

    def generate(context, builder, signature, arguments):
        values, at = arguments
        base = data_pointer(context, builder, signature.args[0], values)
        pointer_type, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer_type, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        pointer = builder.bitcast(builder.gep(base, [at]), pointer_type)
        to_read, second_level_cache, data = (ir.Constant(flag, value) for value in (0, 2, 1))
        builder.call(function, [pointer, to_read, second_level_cache, data])
        return context.get_dummy_value()

    return types.void(values, types.intp), generate


@compiled()
def fill(values, value):
    for i in range(len(values)):
        values[i] = value


@compiled()
def scale_into(values, factor, out):
    for i in range(len(values)):
        out[i] = values[i] * factor


@compiled()
def dot(a, b):
    return sum_of_products(len(a), (), (a, b), ONE)
