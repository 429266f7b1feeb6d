"""The CUDA engine: this project's kernels, one op per `.cu` file, with CuPy for memory, streams,
launches and graphs, and cuBLASLt for products."""
