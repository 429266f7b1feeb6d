// LayerNorm (Ba, Kiros & Hinton 2016, eq. 4), fused with the Euler step in front of it:
//
//   sum = x + h · (delta + c),   out = w · (sum − m) / r + b,
//   m = mean(sum),   r = √(mean((sum − m)²) + ε)
//
// and backward, with u = (sum − m) / r and g = w · dout:
//
//   dx = (g − mean(g) − u · mean(g · u)) / r,   dw = Σₙ dout · u,   db = Σₙ dout
//
// A warp owns a row and keeps it in registers, as in rms_norm.cu. The backward pass takes m again
// from the row, which costs no memory. Sums are in a fixed order.
//
// forward   in: x (N, D) RESIDUAL, delta (N, D) and c (D) ACTIVATION, w and b (D) float
//           out: sum (N, D) RESIDUAL, out (N, D) ACTIVATION, 1/r (N) float
//           bytes: N · D · (2 · residual + 2 · activation)
// backward  in: dout (N, D) ACTIVATION, x (N, D) RESIDUAL, w and b (D), 1/r (N)
//           out: dx (N, D) ACTIVATION, dw and db (D) float, out (N, D) ACTIVATION
//           bytes: N · D · (residual + 2 · activation), and once more activation each for adding to
//           dx and for writing `out` again
//
// With FP8 there are copies in e4m3, as in rms_norm.cu.
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
normalize(const RESIDUAL* x, const ACTIVATION* delta, const ACTIVATION* step_bias, float step_size,
    const float* weight, const float* bias, float epsilon, RESIDUAL* sum, ACTIVATION* out,
    float* inverse_rms, int rows, Quantized quantized) {
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
    statistic total = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + lane;
        if (inside(vector)) {
            Eight constant;
            if (ADD) constant = load(step_bias + vector * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                if (ADD)
                    value[s].at[i] = rounded(
                        value[s].at[i] + step_size * (moved[s].at[i] + constant.at[i]), x);
                total += value[s].at[i];
            }
            if (ADD) store(sum + base + vector * WIDTH, value[s]);
        }
    }
    const statistic mean = warp_sum(total) / DIM;
    statistic squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
        if (inside(s * 32 + lane))
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const statistic centred = value[s].at[i] - mean;
                value[s].at[i] = centred;
                squares += centred * centred;
            }
    const float inverse = statistic(1) / sqrt(warp_sum(squares) / DIM + epsilon);
    if (lane == 0) inverse_rms[row] = inverse;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + lane;
        if (inside(vector)) {
            const Eight scale = load(weight + vector * WIDTH), shift = load(bias + vector * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                value[s].at[i] = fmaf(value[s].at[i] * inverse, scale.at[i], shift.at[i]);
            if (!FP8 || out) store(out + base + vector * WIDTH, value[s]);
            quantized.store(base + vector * WIDTH, value[s]);
        }
    }
    quantized.finish();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    layer_norm(const RESIDUAL* x, const float* weight, const float* bias, float epsilon,
        ACTIVATION* out, float* inverse_rms, int rows, unsigned char* e4m3, Slot* slot) {
    normalize<false>(x, nullptr, nullptr, 0, weight, bias, epsilon, nullptr, out, inverse_rms,
        rows, Quantized(e4m3, slot));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    add_layer_norm(const RESIDUAL* x, const ACTIVATION* delta, const ACTIVATION* step_bias,
        float step_size, RESIDUAL* sum, const float* weight, const float* bias, float epsilon,
        ACTIVATION* out, float* inverse_rms, int rows, unsigned char* e4m3, Slot* slot) {
    normalize<true>(x, delta, step_bias, step_size, weight, bias, epsilon, sum, out, inverse_rms,
        rows, Quantized(e4m3, slot));
}

// dw and db of the rows that a block takes go to partial[block], one behind the other. `out` may be
// null, or `dout` itself.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    layer_norm_backward(const ACTIVATION* dout, const RESIDUAL* x, const float* weight,
        const float* bias, const float* inverse_rms, ACTIVATION* dx, int add_to_dx, ACTIVATION* out,
        float* partial, int rows, unsigned char* e4m3, Slot* slot, unsigned char* across,
        Slot* out_slot) {
    // of db by warp, and at the end of dw: registers do not hold both
    __shared__ alignas(16) float sums[WARPS][DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Eight dweight[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        dweight[s] = {};
        if (inside(s * 32 + lane)) store(&sums[warp][(s * 32 + lane) * WIDTH], dweight[s]);
    }
    Quantized quantized(e4m3, slot), quantized_out(nullptr, FP8 && out_slot ? out_slot : slot);
    constexpr int CHUNK = FP8 ? TOKENS : WARPS;  // rows that a block takes in turn
    for (int first = blockIdx.x * CHUNK; first < rows; first += gridDim.x * CHUNK) {
        for (int row = first + warp; row < min(first + CHUNK, rows); row += WARPS) {
            const size_t base = size_t(row) * DIM + lane * WIDTH;
            const float inverse = inverse_rms[row];
            Raw<ACTIVATION> gradients[STEPS];
            Raw<RESIDUAL> values[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    gradients[s].fetch(dout + base + s * 32 * WIDTH);
                    values[s].fetch(x + base + s * 32 * WIDTH);
                }
            }
            float total = 0;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    const Eight value = values[s].value();
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) total += value.at[i];
                }
            }
            const float mean = warp_sum(total) / DIM;
            float dot = 0, level = 0;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (inside(s * 32 + lane)) {
                    const Eight gradient = gradients[s].value(), value = values[s].value(),
                                scale = load(weight + (s * 32 + lane) * WIDTH);
                    float* dbias = &sums[warp][(s * 32 + lane) * WIDTH];
                    Eight so_far = load(dbias);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) {
                        const float product = gradient.at[i] * ((value.at[i] - mean) * inverse);
                        dweight[s].at[i] += product;
                        so_far.at[i] += gradient.at[i];
                        dot += scale.at[i] * product;
                        level += scale.at[i] * gradient.at[i];
                    }
                    store(dbias, so_far);
                }
            }
            dot = warp_sum(dot) / DIM;
            level = warp_sum(level) / DIM;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                // one step at a time: registers do not hold two
                if (FP8) asm volatile("" : "+f"(dot), "+f"(level)::"memory");
                if (inside(s * 32 + lane)) {
                    const Eight gradient = gradients[s].value(), value = values[s].value(),
                                scale = load(weight + (s * 32 + lane) * WIDTH);
                    Eight sum = {}, again;
                    if (add_to_dx) sum = load(dx + base + s * 32 * WIDTH);
                    const bool writes_again = out || (FP8 && out_slot);
                    if (writes_again) again = load(bias + (s * 32 + lane) * WIDTH);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) {
                        const float unit = (value.at[i] - mean) * inverse;
                        sum.at[i] += (gradient.at[i] * scale.at[i] - level - unit * dot) * inverse;
                        if (writes_again) again.at[i] = fmaf(unit, scale.at[i], again.at[i]);
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
#pragma unroll
    for (int kind = 1; kind >= 0; --kind) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (kind == 0 && inside(s * 32 + lane))
                store(&sums[warp][(s * 32 + lane) * WIDTH], dweight[s]);
        __syncthreads();
        for (int column = threadIdx.x; column < DIM; column += WARPS * 32) {
            float total = sums[0][column];
#pragma unroll
            for (int w = 1; w < WARPS; ++w) total += sums[w][column];
            partial[(size_t(blockIdx.x) * 2 + kind) * DIM + column] = total;
        }
    }
}

// dw and db (D) of the partial sums (blocks, 2 · D). A block takes 32 columns, each of its
// ADDING_WARPS warps every ADDING_WARPS-th row of them.
extern "C" __global__ void __launch_bounds__(ADDING_WARPS * 32)
    sum_gradients(const float* partial, int blocks, float* dweight, float* dbias, int accumulate) {
    __shared__ float sums[ADDING_WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    float total = 0;
    if (column < 2 * DIM)
#pragma unroll 8
        for (int block = warp; block < blocks; block += ADDING_WARPS)
            total += partial[size_t(block) * 2 * DIM + column];
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < 2 * DIM) {
#pragma unroll
        for (int w = 1; w < ADDING_WARPS; ++w) total += sums[w][lane];
        float* target = column < DIM ? dweight + column : dbias + column - DIM;
        *target = accumulate ? *target + total : total;
    }
}
