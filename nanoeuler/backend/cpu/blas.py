"""Matrix products by MKL or by NumPy's own BLAS, called from compiled code.

So products can scale, accumulate and read parts of rows without temporary arrays. MKL runs on
Intel's processors if the package `mkl` is installed. NumPy's wheels contain OpenBLAS under names of
their own (64-bit integers, a prefix); other builds export plain CBLAS. Where none is found, as with
Apple's Accelerate, `numpy.matmul` does the work, with temporary arrays. BLAS is kept at one thread,
because the engine has threads of its own (runtime.py): OpenBLAS's wait by spinning, which
beside any other busy process costs up to 35×.

Compiled code calls sgemm by its address. That takes a microsecond, where ctypes takes eight of the
Python that threads share. Being cheap, calls can also be many: OpenBLAS has kernels for AVX-512
that read small matrices as they are, while it first copies larger ones into an order that suits the
arithmetic. That copying takes a tenth of the time of a small model's products, so they are cut into
small ones. MKL is as fast without such cuts.
"""

import ctypes
from importlib import metadata
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.system import provenance
from nanoeuler.system.compiling import compiled
from nanoeuler.system.numpy_blas import use_one_thread

Integer = type[ctypes.c_int] | type[ctypes.c_int64]

NAMES: dict[str, Integer] = {
    "scipy_cblas_sgemm64_": ctypes.c_int64,
    "cblas_sgemm64_": ctypes.c_int64,
    "cblas_sgemm": ctypes.c_int,
}
"""Names of the function, each with its integer type."""
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
MKL_THREADING_SEQUENTIAL = 1
MKL_CBWR_AUTO = 2
"""MKL's mode: the same bits on every run, wherever the matrices lie, by the fastest kernels."""

UNPACKED_CORES = (b"SkylakeX", b"Cooperlake", b"SapphireRapids")
"""OpenBLAS's names of processors for which it has kernels that read small matrices as they are;
NumPy's own wheels contain these kernels."""
UNPACKED = 1_000_000
"""Multiply-adds of the largest product that takes those kernels: at least eight rows of a part."""
COLUMNS, DEPTH = 128, 512
"""Size of a part: what it reads of `b` stays in the second-level cache for all rows of `a`."""
UNPACKED_MATRIX, UNPACKED_STRIDE = 1 << 18, 1 << 11
"""Elements of the largest `b`, and of the longest row of a transposed `a`, for which the kernels
pay. Caches hold too little of larger ones, and copying is faster."""

Sgemm = tuple[int, bool, int]
"""The function as kernels take it: its address, whether its integers have 64 bits, and the
multiply-adds of the largest product for which it copies nothing (0: it always copies)."""


def prototype(integer: Integer) -> Any:
    """The type of a CBLAS sgemm with that integer type."""
    scalar, pointer = ctypes.c_float, ctypes.c_void_p
    matrix = [pointer, integer]  # with its stride
    orders, sizes = [ctypes.c_int] * 3, [integer] * 3
    return ctypes.CFUNCTYPE(None, *orders, *sizes, scalar, *matrix, *matrix, scalar, *matrix)


class Blas:
    """CBLAS's sgemm of MKL, or as NumPy links it. Sets BLAS to one thread."""

    def __init__(self) -> None:
        library = use_one_thread()
        linked = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        self.label = f"{linked.get('name')} {linked.get('version')}"
        """Name and version, which last bits depend on."""
        if mkl := installed_mkl():
            self.label, path = mkl
            library = ctypes.CDLL(path)
            library.MKL_Set_Threading_Layer(MKL_THREADING_SEQUENTIAL)
            library.MKL_CBWR_Set(MKL_CBWR_AUTO)
        self.name = next((name for name in NAMES if hasattr(library, name)), "numpy.matmul")
        found = self.name in NAMES
        integer: Integer = NAMES.get(self.name, ctypes.c_int64)
        # an attribute, which keeps the function alive
        self.function = getattr(library, self.name) if found else prototype(integer)(matmul)
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        assert address is not None
        unpacked = UNPACKED if found and core_name(library) in UNPACKED_CORES else 0
        self.sgemm: Sgemm = (address, integer is ctypes.c_int64, unpacked)
        self.wants_transposes = not mkl
        """Whether products with a transposed weight are faster where it is stored so."""


def installed_mkl() -> tuple[str, str] | None:
    """Name with version, and path, of the package `mkl`; None on processors that are not Intel's.

    MKL is made for Intel's; those of others keep OpenBLAS.
    """
    try:
        package = metadata.distribution("mkl")
    except metadata.PackageNotFoundError:
        return None
    paths = [file for file in package.files or [] if file.name.startswith("libmkl_rt.so")]
    if not paths or "Intel" not in provenance.cpu_name():
        return None
    return f"mkl {package.version}", str(paths[0].locate())


def core_name(library: ctypes.CDLL) -> bytes:
    """The processor's name in the OpenBLAS of NumPy's wheels; empty without such an OpenBLAS."""
    if not hasattr(library, "scipy_openblas_get_corename64_"):
        return b""
    function = library.scipy_openblas_get_corename64_
    function.restype = ctypes.c_char_p
    return function()


def matmul(
    _: int,
    a_order: int,
    b_order: int,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a_at: int,
    a_stride: int,
    b_at: int,
    b_stride: int,
    beta: float,
    c_at: int,
    c_stride: int,
) -> None:
    """sgemm for row-major matrices at these addresses, by `numpy.matmul`."""
    a = matrix(a_at, m, k, a_stride, a_order)
    b = matrix(b_at, k, n, b_stride, b_order)
    c = matrix(c_at, m, n, c_stride, PLAIN)
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
    vector = np.ctypeslib.as_array(floats)
    return np.lib.stride_tricks.as_strided(vector, (rows, columns), (4 * stride, 4))


@intrinsic
def call_sgemm(context, address, wide, sizes, alpha, a, b, beta, c):
    """c = alpha · a b + beta · c by the C function at `address`.

    `sizes`: rows and columns of c, then columns of a. A matrix is (order, address, stride); c has
    no order, because it is never transposed. All of these are int64.
    """

    def generate(context, builder, signature, arguments):
        address, wide, sizes, alpha, a, b, beta, c = arguments
        sizes, a, b, c = (cgutils.unpack_tuple(builder, value) for value in (sizes, a, b, c))
        int32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        orders = [builder.trunc(order, int32) for order in (a[0], b[0])]

        def call(integer):
            def as_integer(value):
                return value if integer.width == 64 else builder.trunc(value, integer)

            def matrix(operand):
                *_, address, stride = operand
                return [builder.inttoptr(address, pointer), as_integer(stride)]

            values = [ir.Constant(int32, ROW_MAJOR), *orders, *map(as_integer, sizes)]
            values += [alpha, *matrix(a), *matrix(b), beta, *matrix(c)]
            kinds = [value.type for value in values]
            function_type = ir.FunctionType(ir.VoidType(), kinds)
            function = builder.inttoptr(address, function_type.as_pointer())
            builder.call(function, values)

        with builder.if_else(cgutils.as_bool_bit(builder, wide)) as (then, otherwise):
            with then:
                call(ir.IntType(64))
            with otherwise:
                call(int32)
        return context.get_dummy_value()

    i, f = types.int64, types.float32
    two, three = types.UniTuple(i, 2), types.UniTuple(i, 3)
    return types.void(i, types.boolean, three, f, three, three, f, two), generate


@compiled()
def layout(x):
    """The order of a matrix (plain or transposed), and the stride of its rows in memory.

    Its rows or its columns are contiguous. The stride is in floats.
    """
    rows, columns = x.strides
    if columns == 4:
        return PLAIN, max(rows // 4, x.shape[1])
    return TRANSPOSED, max(columns // 4, x.shape[0])


@compiled()
def part_size(count, most):
    """The size of as few equal parts of `count` as have at most `most` each, in steps of 16."""
    parts = (count + most - 1) // most
    return min(count, ((count + parts - 1) // parts + 15) // 16 * 16)


@compiled()
def product(sgemm, a, b, c, alpha, beta):
    """c = alpha · a b + beta · c for float32 matrices.

    `a` and `b` may be transposes of matrices with contiguous rows. Where `b` is a small matrix and
    no transpose, the product is cut into parts for which BLAS copies nothing.
    """
    address, wide, unpacked = sgemm
    m, k = a.shape
    n = b.shape[1]
    if m == 0 or n == 0:
        return
    a_order, a_stride = layout(a)
    b_order, b_stride = layout(b)
    c_stride = c.strides[0] // 4
    a_at, b_at, c_at = a.ctypes.data, b.ctypes.data, c.ctypes.data
    rows, columns, depth = m, n, max(k, 1)
    near = a_order == PLAIN or a_stride <= UNPACKED_STRIDE
    if unpacked > 0 and k > 0 and b_order == PLAIN and k * n <= UNPACKED_MATRIX and near:
        columns, depth = part_size(n, COLUMNS), part_size(k, DEPTH)
        rows = unpacked // (columns * depth)
        rows -= rows % (24 if rows >= 24 else 8)  # the kernels take 24 or 8 rows at a time
    row_step, depth_step = (1, a_stride) if a_order == TRANSPOSED else (a_stride, 1)
    for j in range(0, n, columns):
        for inner in range(0, max(k, 1), depth):
            kept = beta if inner == 0 else np.float32(1)
            for i in range(0, m, rows):
                sizes = min(rows, m - i), min(columns, n - j), min(depth, k - inner)
                a_part = a_order, a_at + 4 * (i * row_step + inner * depth_step), a_stride
                b_part = b_order, b_at + 4 * (inner * b_stride + j), b_stride
                c_part = c_at + 4 * (i * c_stride + j), c_stride
                call_sgemm(address, wide, sizes, alpha, a_part, b_part, kept, c_part)
