// Appends new keys (or values) to a cache: token t of row b goes to slot offset_b + t. What would
// lie past the cache's end is dropped.
//
// write_cache
// in: fresh (B, T, G, E) ACTIVATION, rows `stride` elements apart; offset (B) int
// in and out: cache (B, S, G, E) ACTIVATION, whole rows of G · E = WIDE elements
// bytes: 2 · B · T · G · E · activation
//
// window_starts: the first slot that each token sees through a sliding window
// in: starts (B, T) int, offset (B) int; out: (B, T) int      bytes: 8 · B · T
//
// Compiled in: WIDE, THREADS of a block.
#include "common.cuh"

constexpr int VECTORS = WIDE / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
    write_cache(const ACTIVATION* fresh, long long stride, const int* offset, ACTIVATION* cache,
        int rows, int T, int S, long long cache_batch) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const int b = row / T, slot = offset[b] + row % T;
    if (slot < S)
        store(cache + b * cache_batch + (long long)slot * WIDE + column,
            load(fresh + row * stride + column));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    window_starts(const int* starts, const int* offset, int window, int last, int* out, int tokens,
        int T) {
    const int index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= tokens) return;
    const int slot = offset[index / T] + index % T;
    out[index] = min(max(starts[index], slot - window + 1), last);
}
