"""The BLAS by which NumPy multiplies matrices, and its threads."""

import ctypes
import importlib

THREADS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)


def use_one_thread() -> ctypes.CDLL:
    """Keep it at one thread: more share each product, with other last bits. Returns a library
    through which its functions are found."""
    # symbols of the libraries that this one links are found through it
    library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    for name in THREADS:
        if hasattr(library, name):
            getattr(library, name)(ctypes.c_int(1))
    return library
