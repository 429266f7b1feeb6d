// GELU (gelu.cuh), and what biases take:
//
//   dbias = scale · Σₙ dout
//
// add_bias      in and out: x (N, F) ACTIVATION; in: bias (F) ACTIVATION
// bias_gelu     the same, and out: gelu(x) (N, F)      bytes: 3 · N · F · activation
// gelu_backward in: dout, x (N, F); out: dx, and gelu(x) once more, so that it need not be kept;
//               each may replace an input              bytes: 4 · N · F · activation
// bias_backward in: dout (N, F); out: partial (parts, F) float; then sum_bias adds its rows up, all
//               in a fixed order                       bytes: N · F · activation
// bias_backward_transposed  the same at once, of dout in e4m3, transposed (fp8.cuh)
//                                                      bytes: N · F
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"
#define FP8 1
#include "fp8.cuh"
#include "gelu.cuh"

constexpr int VECTORS = FFN / WIDTH;

struct Place {
    unsigned row, column;
    size_t at;

    __device__ __forceinline__ Place() {
        const unsigned index = blockIdx.x * THREADS + threadIdx.x;
        row = index / VECTORS;
        column = index % VECTORS * WIDTH;
        at = size_t(row) * FFN + column;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    add_bias(ACTIVATION* x, const ACTIVATION* bias, int rows) {
    const Place place;
    if (place.row >= rows) return;
    Eight value = load(x + place.at);
    const Eight constant = load(bias + place.column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.at[i] += constant.at[i];
    store(x + place.at, value);
}

// Without a bias (null) x stays.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gelu(ACTIVATION* x, const ACTIVATION* bias, ACTIVATION* out, int rows) {
    const Place place;
    if (place.row >= rows) return;
    Eight value = load(x + place.at);
    if (bias) {
        const Eight constant = load(bias + place.column);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            value.at[i] = rounded(value.at[i] + constant.at[i], x);
        store(x + place.at, value);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.at[i] *= gelu_sigma(value.at[i]);
    store(out + place.at, value);
}

// `out` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_backward(const ACTIVATION* dout, const ACTIVATION* x, ACTIVATION* dx, ACTIVATION* out,
        int rows) {
    const Place place;
    if (place.row >= rows) return;
    const Eight value = load(x + place.at), gradient = load(dout + place.at);
    Eight slope, again;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const GeluGradient one = gelu_gradient(gradient.at[i], value.at[i]);
        slope.at[i] = one.dx, again.at[i] = one.out;
    }
    store(dx + place.at, slope);
    if (out) store(out + place.at, again);
}

// Block (c, p) adds up part p of the rows in 32 · WIDTH columns from c · 32 · WIDTH on.
constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    bias_backward(const ACTIVATION* dout, float* partial, int rows) {
    __shared__ alignas(16) float sums[WARPS][32 * WIDTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              column = (blockIdx.x * 32 + lane) * WIDTH;
    const int share = (rows + gridDim.y - 1) / gridDim.y, start = blockIdx.y * share,
              stop = min(rows, start + share);
    Eight total = {};
    if (column < FFN)
#pragma unroll 4
        for (int row = start + warp; row < stop; row += WARPS) {
            const Eight value = load(dout + size_t(row) * FFN + column);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) total.at[i] += value.at[i];
        }
    store(&sums[warp][lane * WIDTH], total);
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * WIDTH && blockIdx.x * 32 * WIDTH + c < FFN; c += THREADS) {
        float one = sums[0][c];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) one += sums[w][c];
        partial[size_t(blockIdx.y) * FFN + blockIdx.x * 32 * WIDTH + c] = one;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_bias(const float* partial, int parts, float* dbias, float scale, int accumulate) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= FFN) return;
    float total = 0;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) total += partial[size_t(part) * FFN + column];
    dbias[column] = accumulate ? fmaf(scale, total, dbias[column]) : scale * total;
}

// A warp takes a column of dout, a row of its transposed copy; `rows` are a multiple of 16.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_backward_transposed(const unsigned char* transposed, const Slot* slot, float* dbias,
        float scale, int accumulate, int rows) {
    const int column = blockIdx.x * WARPS + threadIdx.x / 32;
    if (column >= FFN) return;
    const unsigned char* values = transposed + size_t(column) * rows;
    float total = 0;
#pragma unroll 4
    for (int row = threadIdx.x % 32 * 16; row < rows; row += 32 * 16) {
        const uint4 words = *reinterpret_cast<const uint4*>(values + row);
        total += e4m3_sum(words.x) + e4m3_sum(words.y) + (e4m3_sum(words.z) + e4m3_sum(words.w));
    }
    total = warp_sum(total) * (scale * slot->inverse);
    if (threadIdx.x % 32 == 0) dbias[column] = accumulate ? dbias[column] + total : total;
}
