"""Matrix products by NumPy's own BLAS, called so that they scale, accumulate and read parts of rows without temporaries.

NumPy's wheels bring OpenBLAS under names of their own (64-bit integers, a prefix); other builds export plain CBLAS. Where none
is found, as with Apple's Accelerate, `numpy.matmul` does the work, with a temporary where something is added. BLAS is kept at
one thread: the threads are ours (team.py), and OpenBLAS's own wait by spinning, which beside any other busy process costs up to 35×.
"""

import ctypes
import os
from typing import Any

import numpy as np

NAMES = {"scipy_cblas_sgemm64_": ctypes.c_int64, "cblas_sgemm64_": ctypes.c_int64, "cblas_sgemm": ctypes.c_int}
"""Name of the function → its integer type."""
THREADS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads", "MKL_Set_Num_Threads")
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112


def load() -> tuple[str, Any]:
    """Name and function of CBLAS's sgemm as NumPy links it, or ("numpy.matmul", None). Sets BLAS to one thread."""
    library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # symbols of the libraries that it links are found through it
    for name in THREADS:
        if hasattr(library, name):
            getattr(library, name)(ctypes.c_int(1))
    for name, integer in NAMES.items():
        if hasattr(library, name):
            function = getattr(library, name)
            pointer = ctypes.c_void_p
            scalar = ctypes.c_float
            function.argtypes = [*[ctypes.c_int] * 3, *[integer] * 3, scalar, pointer, integer, pointer, integer, scalar, pointer, integer]
            function.restype = None
            return name, function
    return "numpy.matmul", None


class Products:
    """c = alpha · a b + beta · c for float32 matrices whose rows are contiguous."""

    def __init__(self) -> None:
        self.name, self.sgemm = load()

    def __call__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float = 1.0, accumulate: bool = False) -> None:
        """`a` and `b` may be transposes of such matrices."""
        if self.sgemm is None:
            product(a, b, c, alpha, accumulate)
            return
        (m, k), n = a.shape, b.shape[1]
        if not (m and n):
            return
        (a_order, a_stride), (b_order, b_stride) = order(a), order(b)
        beta = 1.0 if accumulate else 0.0
        places = a.ctypes.data, b.ctypes.data, c.ctypes.data
        self.sgemm(ROW_MAJOR, a_order, b_order, m, n, k, alpha, places[0], a_stride, places[1], b_stride, beta, places[2], c.strides[0] // 4)


def order(x: np.ndarray) -> tuple[int, int]:
    """How BLAS is told to read `x`: plain or transposed, and the distance of its rows in floats."""
    rows, columns = x.strides
    if columns == 4:
        return PLAIN, max(rows // 4, x.shape[1])
    return TRANSPOSED, max(columns // 4, x.shape[0])


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float, accumulate: bool) -> None:
    result = np.matmul(a, b) if accumulate or alpha != 1.0 else np.matmul(a, b, out=c)
    if alpha != 1.0:
        result *= alpha
    if accumulate:
        c += result
    elif result is not c:
        c[...] = result


def threads_allowed() -> int:
    """Cores that this process may use: its affinity, and the usual variables, which a workflow sets, if they ask for fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = [os.environ[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if os.environ.get(name, "").isdigit()]
    return max(1, min([cores, *(int(value) for value in asked if int(value) > 0)]))
