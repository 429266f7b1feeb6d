"""The machine that recorded hashes hold for."""

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

from nanoeuler.backend.cpu.blas import installed_mkl
from nanoeuler.system.machine import usable_cores


def machine() -> str:
    """What rounding depends on: the kernels that BLAS, NumPy and Numba choose, and the threads."""
    processor, cores = get_host_cpu_name(), usable_cores()
    packages = f"NumPy {np.__version__}, Numba {numba.__version__}"
    mkl = f", {found[0]}" if (found := installed_mkl()) else ""
    return f"{processor}, {cores} cores, {packages}{mkl}"
