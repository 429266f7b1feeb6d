// Dropout in front of adapters:  out = x, but 0 where a hash of row and column is small
//
// dropout  in: x (N, F) ACTIVATION, seeds (N,), rows `stride` elements apart
//          out: out (N, F), which may be x, rows `out_stride` elements apart
//          bytes: 2 · N · F · activation
//
// The hash is that of nanoeuler/backend/dropout.py, bit by bit, so that all engines drop the same.
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"

constexpr int VECTORS = FFN / WIDTH;

// The end of MurmurHash3 (Appleby 2011).
__device__ __forceinline__ unsigned mixed(unsigned word) {
    word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
    word = (word ^ (word >> 13)) * 0xC2B2AE35u;
    return word ^ (word >> 16);
}

// What hashes to less than `threshold` is dropped. A number that is none stays none, as a product
// with 0 does.
extern "C" __global__ void __launch_bounds__(THREADS)
    dropout(const ACTIVATION* x, long long stride, const int* seeds, int salt, int threshold,
        ACTIVATION* out, long long out_stride, int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const unsigned of_row = mixed(unsigned(seeds[row]) ^ mixed(salt));
    Eight value = load(x + row * stride + column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        value.at[i] *= mixed(of_row ^ mixed(column + i)) >= unsigned(threshold);
    store(out + row * out_stride + column, value);
}
