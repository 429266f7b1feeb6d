"""The engine for CPUs: NumPy's BLAS for matrix products, functions compiled by Numba for everything else."""
