"""Matrix products by NumPy's own BLAS, called from compiled code so that they scale, accumulate and read parts of rows without temporaries.

NumPy's wheels bring OpenBLAS under names of their own (64-bit integers, a prefix); other builds export plain CBLAS. Where none
is found, as with Apple's Accelerate, `numpy.matmul` does the work, with temporaries. BLAS is kept at one thread: the threads
are ours (team.py), and OpenBLAS's own wait by spinning, which beside any other busy process costs up to 35×.

Compiled code calls sgemm by its address: a call costs a microsecond, where ctypes takes eight of the Python that threads share. And as a
call from there costs nothing, it can be many: OpenBLAS has kernels for AVX-512 that read small matrices where they lie, while larger ones
are first copied into an order that suits the arithmetic. That takes a tenth of the time of the products of small models, so they are cut into small ones.
"""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.compiling import compiled

NAMES = {
    "scipy_cblas_sgemm64_": ctypes.c_int64,
    "cblas_sgemm64_": ctypes.c_int64,
    "cblas_sgemm": ctypes.c_int,
}
"""Name of the function → its integer type."""
THREADS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112

UNPACKED_CORES = (b"SkylakeX", b"Cooperlake", b"SapphireRapids")
"""OpenBLAS's names of processors for which it has kernels that read small matrices where they lie; NumPy's own wheels contain them."""
UNPACKED = 1_000_000
"""Multiply-adds of the largest product that they are used for: at least eight rows of what follows."""
COLUMNS, DEPTH = 128, 512
"""Of such a product: what it reads of `b` stays in the second-level cache for all rows of `a`."""
UNPACKED_MATRIX, UNPACKED_STRIDE = 1 << 18, 1 << 11
"""Elements of the largest `b`, and of the longest row of a transposed `a`, that are worth reading so: beyond, caches hold too little, and copying pays."""


def prototype(integer: Any) -> Any:
    scalar, pointer = ctypes.c_float, ctypes.c_void_p
    return ctypes.CFUNCTYPE(
        None,
        *[ctypes.c_int] * 3,
        *[integer] * 3,
        scalar,
        pointer,
        integer,
        pointer,
        integer,
        scalar,
        pointer,
        integer,
    )


class Blas:
    """CBLAS's sgemm as NumPy links it: `name`, `address`, `wide` where its integers have 64 bits, and `unpacked`, the multiply-adds up to
    which it copies nothing (0: it always does). Sets BLAS to one thread.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(
            np._core._multiarray_umath.__file__
        )  # symbols of the libraries that it links are found through it
        for name in THREADS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(1))
        self.name = next((name for name in NAMES if hasattr(library, name)), "numpy.matmul")
        integer = NAMES.get(self.name, ctypes.c_int64)
        self.function = (
            getattr(library, self.name) if self.name in NAMES else prototype(integer)(matmul)
        )
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.wide = integer is ctypes.c_int64
        self.unpacked = (
            UNPACKED if self.name in NAMES and core_name(library) in UNPACKED_CORES else 0
        )


def core_name(library: Any) -> bytes:
    """Of the processor, as the OpenBLAS of NumPy's wheels calls it; empty elsewhere."""
    if not hasattr(library, "scipy_openblas_get_corename64_"):
        return b""
    function = library.scipy_openblas_get_corename64_
    function.restype = ctypes.c_char_p
    return function()


def matmul(
    _, a_order, b_order, m, n, k, alpha, a_at, a_stride, b_at, b_stride, beta, c_at, c_stride
) -> None:
    """What sgemm does, for row-major matrices at some addresses."""
    a, b, c = (
        matrix(a_at, m, k, a_stride, a_order),
        matrix(b_at, k, n, b_stride, b_order),
        matrix(c_at, m, n, c_stride, PLAIN),
    )
    result = np.matmul(a, b)
    result *= np.float32(alpha)
    if beta:
        c += result
    else:
        c[...] = result


def matrix(address: int, rows: int, columns: int, stride: int, order: int) -> np.ndarray:
    if order == TRANSPOSED:
        return matrix(address, columns, rows, stride, PLAIN).T
    floats = (ctypes.c_float * ((rows - 1) * stride + columns)).from_address(address)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(floats, np.float32), (rows, columns), (4 * stride, 4)
    )


@intrinsic
def call_sgemm(
    context,
    address,
    wide,
    a_order,
    b_order,
    m,
    n,
    k,
    alpha,
    a,
    a_stride,
    b,
    b_stride,
    beta,
    c,
    c_stride,
):
    """The C function at `address`; matrices are given by their addresses."""

    def generate(context, builder, signature, arguments):
        (
            address,
            wide,
            a_order,
            b_order,
            m,
            n,
            k,
            alpha,
            a,
            a_stride,
            b,
            b_stride,
            beta,
            c,
            c_stride,
        ) = arguments
        int32, number, pointer = ir.IntType(32), ir.FloatType(), ir.IntType(8).as_pointer()
        orders = [
            ir.Constant(int32, ROW_MAJOR),
            builder.trunc(a_order, int32),
            builder.trunc(b_order, int32),
        ]
        a, b, c = (builder.inttoptr(value, pointer) for value in (a, b, c))

        def call(integer):
            kinds = [
                *[int32] * 3,
                *[integer] * 3,
                number,
                pointer,
                integer,
                pointer,
                integer,
                number,
                pointer,
                integer,
            ]
            function = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), kinds).as_pointer())
            m_, n_, k_, a_, b_, c_ = (
                value if integer.width == 64 else builder.trunc(value, integer)
                for value in (m, n, k, a_stride, b_stride, c_stride)
            )
            builder.call(function, [*orders, m_, n_, k_, alpha, a, a_, b, b_, beta, c, c_])

        with builder.if_else(cgutils.as_bool_bit(builder, wide)) as (then, otherwise):
            with then:
                call(ir.IntType(64))
            with otherwise:
                call(int32)
        return context.get_dummy_value()

    i, f = types.int64, types.float32
    return types.void(i, types.boolean, *[i] * 5, f, i, i, i, i, f, i, i), generate


@compiled()
def order(x):
    """How BLAS is told to read `x`, whose rows or columns are contiguous: plain or transposed, and their distance in floats."""
    rows, columns = x.strides
    if columns == 4:
        return PLAIN, max(rows // 4, x.shape[1])
    return TRANSPOSED, max(columns // 4, x.shape[0])


@compiled()
def even(count, most):
    """The size of as few equal parts of `count` as have at most `most` each, in steps of 16."""
    parts = (count + most - 1) // most
    return min(count, ((count + parts - 1) // parts + 15) // 16 * 16)


@compiled()
def product(address, wide, unpacked, a, b, c, alpha, beta):
    """c = alpha · a b + beta · c for float32 matrices; `a` and `b` may be transposes of matrices with contiguous rows.

    Where `b` is a small matrix and no transpose, it is cut into products of at most `unpacked` multiply-adds.
    """
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0:
        return
    (a_order, a_stride), (b_order, b_stride), c_stride = order(a), order(b), c.strides[0] // 4
    a_at, b_at, c_at = a.ctypes.data, b.ctypes.data, c.ctypes.data
    rows, columns, depth = m, n, max(k, 1)
    near = a_order == PLAIN or a_stride <= UNPACKED_STRIDE
    if unpacked > 0 and k > 0 and b_order == PLAIN and k * n <= UNPACKED_MATRIX and near:
        columns, depth = even(n, COLUMNS), even(k, DEPTH)
        rows = unpacked // (columns * depth)
        rows -= rows % (24 if rows >= 24 else 8)  # the kernels take 24 or 8 rows at a time
    row_step, depth_step = (1, a_stride) if a_order == TRANSPOSED else (a_stride, 1)
    for j in range(0, n, columns):
        for inner in range(0, max(k, 1), depth):
            kept = beta if inner == 0 else np.float32(1)
            for i in range(0, m, rows):
                sizes = min(rows, m - i), min(columns, n - j), min(depth, k - inner)
                places = (
                    a_at + 4 * (i * row_step + inner * depth_step),
                    b_at + 4 * (inner * b_stride + j),
                    c_at + 4 * (i * c_stride + j),
                )
                call_sgemm(
                    address,
                    wide,
                    a_order,
                    b_order,
                    *sizes,
                    alpha,
                    places[0],
                    a_stride,
                    places[1],
                    b_stride,
                    kept,
                    places[2],
                    c_stride,
                )
