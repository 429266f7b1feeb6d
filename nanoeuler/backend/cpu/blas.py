"""Matrix products by NumPy's own BLAS, called from compiled code so that they scale, accumulate and read parts of rows without temporaries.

NumPy's wheels bring OpenBLAS under names of their own (64-bit integers, a prefix); other builds export plain CBLAS. Where none
is found, as with Apple's Accelerate, `numpy.matmul` does the work, with temporaries. BLAS is kept at one thread: the threads
are ours (team.py), and OpenBLAS's own wait by spinning, which beside any other busy process costs up to 35×.

Compiled code calls sgemm by its address: a call costs a microsecond, where ctypes takes eight of the Python that threads share.
"""

import ctypes
import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.compiling import compiled

NAMES = {"scipy_cblas_sgemm64_": ctypes.c_int64, "cblas_sgemm64_": ctypes.c_int64, "cblas_sgemm": ctypes.c_int}
"""Name of the function → its integer type."""
THREADS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads", "MKL_Set_Num_Threads")
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112


def prototype(integer: Any) -> Any:
    scalar, pointer = ctypes.c_float, ctypes.c_void_p
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 3, *[integer] * 3, scalar, pointer, integer, pointer, integer, scalar, pointer, integer)


class Blas:
    """CBLAS's sgemm as NumPy links it: `name`, `address`, and `wide` where its integers have 64 bits. Sets BLAS to one thread."""

    def __init__(self) -> None:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # symbols of the libraries that it links are found through it
        for name in THREADS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(1))
        self.name = next((name for name in NAMES if hasattr(library, name)), "numpy.matmul")
        integer = NAMES.get(self.name, ctypes.c_int64)
        self.function = getattr(library, self.name) if self.name in NAMES else prototype(integer)(matmul)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.wide = integer is ctypes.c_int64


def matmul(_, a_order, b_order, m, n, k, alpha, a_at, a_stride, b_at, b_stride, beta, c_at, c_stride) -> None:
    """What sgemm does, for row-major matrices at some addresses."""
    a, b, c = matrix(a_at, m, k, a_stride, a_order), matrix(b_at, k, n, b_stride, b_order), matrix(c_at, m, n, c_stride, PLAIN)
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
    return np.lib.stride_tricks.as_strided(np.frombuffer(floats, np.float32), (rows, columns), (4 * stride, 4))


@intrinsic
def call_sgemm(context, address, wide, a_order, b_order, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride):
    """The C function at `address`; matrices are given by their addresses."""

    def generate(context, builder, signature, arguments):
        address, wide, a_order, b_order, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride = arguments
        int32, number, pointer = ir.IntType(32), ir.FloatType(), ir.IntType(8).as_pointer()
        orders = [ir.Constant(int32, ROW_MAJOR), builder.trunc(a_order, int32), builder.trunc(b_order, int32)]
        a, b, c = (builder.inttoptr(value, pointer) for value in (a, b, c))

        def call(integer):
            kinds = [*[int32] * 3, *[integer] * 3, number, pointer, integer, pointer, integer, number, pointer, integer]
            function = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), kinds).as_pointer())
            m_, n_, k_, a_, b_, c_ = (value if integer.width == 64 else builder.trunc(value, integer) for value in (m, n, k, a_stride, b_stride, c_stride))
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
def product(address, wide, a, b, c, alpha, beta):
    """c = alpha · a b + beta · c for float32 matrices; `a` and `b` may be transposes of matrices with contiguous rows."""
    (m, k), n = a.shape, b.shape[1]
    if m > 0 and n > 0:
        (a_order, a_stride), (b_order, b_stride) = order(a), order(b)
        places = a.ctypes.data, b.ctypes.data, c.ctypes.data
        call_sgemm(address, wide, a_order, b_order, m, n, k, alpha, places[0], a_stride, places[1], b_stride, beta, places[2], c.strides[0] // 4)


def threads_allowed() -> int:
    """Cores that this process may use: its affinity, and the usual variables, which a workflow sets, if they ask for fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = [os.environ[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if os.environ.get(name, "").isdigit()]
    return max(1, min([cores, *(int(value) for value in asked if int(value) > 0)]))
