// Rotary positions (Su et al. 2021, eq. 34, halves instead of neighbours), in place:
//
//   (a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ),   φ = position · θ^(−2i/E)
//
// The backward pass is the inverse rotation, by −φ.
//
// in:  positions (N) int; cosine, sine (positions, E / 2) float, which the L2 holds
// in and out: x (N, H, E) ACTIVATION, rows `stride` elements apart
// bytes: 2 · N · H · E · activation
//
// Compiled in: HEAD_SIZE = E, THREADS of a block.
#include "common.cuh"
#include "rotation.cuh"

constexpr int HALF = HEAD_SIZE / 2;
// Threads of a head: each rotates 8 elements of the first half with 8 of the second.
constexpr int PAIRS = HALF / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(ACTIVATION* x, long long stride, const int* positions, const float* cosine,
        const float* sine, int rows, int heads, float direction) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, per_row = heads * PAIRS;
    const unsigned row = index / per_row, in_row = index % per_row;
    if (row >= rows) return;
    const int head = in_row / PAIRS, column = in_row % PAIRS * WIDTH;
    ACTIVATION* first = x + row * stride + head * HEAD_SIZE + column;
    const size_t angle = size_t(positions[row]) * HALF + column;
    Eight a = load(first), b = load(first + HALF);
    const Eight cos = load(cosine + angle), sin = load(sine + angle);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float2 pair = rotated(a.at[i], b.at[i], cos.at[i], sin.at[i], direction);
        a.at[i] = pair.x, b.at[i] = pair.y;
    }
    store(first, a);
    store(first + HALF, b);
}
