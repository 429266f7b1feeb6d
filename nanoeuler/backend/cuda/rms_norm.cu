// RMSNorm (Zhang & Sennrich 2019, eq. 4), fused with the Euler step in front of it:
//
//   sum = x + h · delta,   out = w · sum / r,   r = √(mean(sum²) + ε)
//
// and backward, with u = sum / r and g = w · dout:
//
//   dx = (g − u · mean(g · u)) / r,   dw = Σₙ dout · u
//
// A warp owns a row and keeps it in registers. Row sums are taken by shuffles, dw in two passes
// over fixed partial sums, so that equal inputs give equal bits.
//
// forward   in: x (N, D) RESIDUAL, delta (N, D) ACTIVATION, w (D) float
//           out: sum (N, D) RESIDUAL, out (N, D) ACTIVATION, 1/r (N) float
//           bytes: N · D · (2 · residual + 2 · activation)
// backward  in: dout (N, D) ACTIVATION, x (N, D) RESIDUAL, w (D), 1/r (N)
//           out: dx (N, D) ACTIVATION, dw (D) float, out (N, D) ACTIVATION
//           bytes: N · D · (residual + 2 · activation), and once more activation each for adding to
//           dx and for writing `out` again
//
// With FP8, `out` of the forward pass and dx of the backward pass go to `e4m3` (N, D), too, as
// fp8.cuh says: another N · D bytes. The backward pass also writes one of them as (D, N), to
// `across`: the forward pass's `out`, if it has a slot, or dx. `out` may be null in either.
//
// Compiled in: DIM, WARPS of a block, BLOCKS of a multiprocessor (backward), ADDING_WARPS, FP8,
// TOKENS that are transposed together.
#include "common.cuh"
#include "fp8.cuh"
#include "statistic.cuh"
#include "transposed_rows.cuh"

constexpr int VECTORS = DIM / WIDTH;  // accesses of a row
constexpr int STEPS = (VECTORS + 31) / 32;  // of one lane
constexpr bool EVEN = VECTORS % 32 == 0;

__device__ __forceinline__ bool inside(int vector) { return EVEN || vector < VECTORS; }

template <bool ADD>
__device__ __forceinline__ void
normalize(const RESIDUAL* x, const ACTIVATION* delta, float step_size, const float* weight,
    float epsilon, RESIDUAL* sum, ACTIVATION* out, float* inverse_rms, int rows,
    Quantized quantized) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const size_t base = size_t(row) * DIM;
    Eight value[STEPS], moved[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + lane;
        if (inside(vector)) {
            value[s] = load(x + base + vector * WIDTH);
            if (ADD) moved[s] = load(delta + base + vector * WIDTH);
        }
    }
    statistic squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + lane;
        if (inside(vector)) {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                if (ADD) value[s].at[i] = rounded(value[s].at[i] + step_size * moved[s].at[i], x);
                squares += statistic(value[s].at[i]) * value[s].at[i];
            }
            if (ADD) store(sum + base + vector * WIDTH, value[s]);
        }
    }
    const statistic exact = statistic(1) / sqrt(warp_sum(squares) / DIM + epsilon);
    const float inverse = exact, rest = exact - inverse;
    if (lane == 0) inverse_rms[row] = inverse;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + lane;
        if (inside(vector)) {
            const Eight scale = load(weight + vector * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                value[s].at[i] *=
                    EXACT ? fmaf(inverse, scale.at[i], rest * scale.at[i]) : inverse * scale.at[i];
            if (!FP8 || out) store(out + base + vector * WIDTH, value[s]);
            quantized.store(base + vector * WIDTH, value[s]);
        }
    }
    quantized.finish();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    rms_norm(const RESIDUAL* x, const float* weight, float epsilon, ACTIVATION* out,
        float* inverse_rms, int rows, unsigned char* e4m3, Slot* slot) {
    normalize<false>(x, nullptr, 0, weight, epsilon, nullptr, out, inverse_rms, rows,
        Quantized(e4m3, slot));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    add_rms_norm(const RESIDUAL* x, const ACTIVATION* delta, float step_size, const float* weight,
        float epsilon, RESIDUAL* sum, ACTIVATION* out, float* inverse_rms, int rows,
        unsigned char* e4m3, Slot* slot) {
    normalize<true>(x, delta, step_size, weight, epsilon, sum, out, inverse_rms, rows,
        Quantized(e4m3, slot));
}

// dw of the rows that a block takes goes to partial[block]. `out` may be null, or `dout` itself.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    rms_norm_backward(const ACTIVATION* dout, const RESIDUAL* x, const float* weight,
        const float* inverse_rms, ACTIVATION* dx, int add_to_dx, ACTIVATION* out, float* partial,
        int rows, unsigned char* e4m3, Slot* slot, unsigned char* across, Slot* out_slot) {
    __shared__ float sums[WARPS][DIM];  // of dw at the end; until then the first row holds w
    float* scales = sums[0];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int column = threadIdx.x; column < DIM; column += WARPS * 32)
        scales[column] = weight[column];
    __syncthreads();
    Eight dweight[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) dweight[s] = {};
    Quantized quantized(e4m3, slot), quantized_out(nullptr, FP8 && out_slot ? out_slot : slot);
    constexpr int CHUNK = FP8 ? TOKENS : WARPS;  // rows that a block takes in turn
    for (int first = blockIdx.x * CHUNK; first < rows; first += gridDim.x * CHUNK) {
        for (int row = first + warp; row < min(first + CHUNK, rows); row += WARPS) {
            const size_t base = size_t(row) * DIM + lane * WIDTH;
            const float inverse = inverse_rms[row];
            Raw<ACTIVATION> gradients[STEPS], before[STEPS];
            Raw<RESIDUAL> values[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    gradients[s].fetch(dout + base + s * 32 * WIDTH);
                    values[s].fetch(x + base + s * 32 * WIDTH);
                    if (add_to_dx) before[s].fetch(dx + base + s * 32 * WIDTH);
                }
            }
            float dot = 0;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    const Eight gradient = gradients[s].value(), value = values[s].value(),
                                scale = load(scales + (s * 32 + lane) * WIDTH);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) {
                        const float product = gradient.at[i] * (value.at[i] * inverse);
                        dweight[s].at[i] += product;
                        dot += scale.at[i] * product;
                    }
                }
            }
            const float mean = warp_sum(dot) / DIM;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    const Eight gradient = gradients[s].value(), value = values[s].value(),
                                scale = load(scales + (s * 32 + lane) * WIDTH);
                    Eight sum = {}, again;
                    if (add_to_dx) sum = before[s].value();
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) {
                        const float unit = value.at[i] * inverse;
                        sum.at[i] += (gradient.at[i] * scale.at[i] - unit * mean) * inverse;
                        again.at[i] = unit * scale.at[i];
                    }
                    store(dx + base + s * 32 * WIDTH, sum);
                    if (out) store(out + base + s * 32 * WIDTH, again);
                    if (FP8) {
                        const uint2 words = quantized.round(sum);
                        *reinterpret_cast<uint2*>(e4m3 + base + s * 32 * WIDTH) = words;
                        if (across)
                            keep(row - first, s * 32 + lane,
                                out_slot ? quantized_out.round(again) : words);
                    }
                }
            }
        }
        if (FP8 && across) {
            __syncthreads();
            store_across<WARPS * 32>(across, first, rows);
            __syncthreads();
        }
    }
    quantized.finish();
    if (FP8 && out_slot) quantized_out.finish();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
        if (inside(s * 32 + lane)) store(&sums[warp][(s * 32 + lane) * WIDTH], dweight[s]);
    __syncthreads();
    for (int column = threadIdx.x; column < DIM; column += WARPS * 32) {
        float total = sums[0][column];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) total += sums[w][column];
        partial[size_t(blockIdx.x) * DIM + column] = total;
    }
}

// dw (D) of the partial sums (blocks, D). A block takes 32 columns, each of its ADDING_WARPS warps
// every ADDING_WARPS-th row of them.
extern "C" __global__ void __launch_bounds__(ADDING_WARPS * 32)
    sum_weight_gradient(const float* partial, int blocks, float* dweight, int accumulate) {
    __shared__ float sums[ADDING_WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    float total = 0;
    if (column < DIM)
#pragma unroll 8
        for (int block = warp; block < blocks; block += ADDING_WARPS)
            total += partial[size_t(block) * DIM + column];
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < DIM) {
#pragma unroll
        for (int w = 1; w < ADDING_WARPS; ++w) total += sums[w][lane];
        dweight[column] = accumulate ? dweight[column] + total : total;
    }
}
