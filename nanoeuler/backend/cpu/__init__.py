"""The engine for CPUs: NumPy's BLAS for matrix products, Numba's compiler for everything else."""
