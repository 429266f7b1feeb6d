// `head_norm` of head_norm.cu for one head that is as wide as the stream: the norm behind a block
// (Gemma). Formulas, and what is written, are those of that file.
//
//   y = w · x / r,   r = √(mean(x²) + ε),   dx = (g − u · mean(g · u)) / r,   dw = Σ dy · u
//
// A block takes a row at a time. In the backward pass a thread has the same columns of every row
// that its block takes, and keeps their part of dw in registers; `sum_weight_gradient` of
// rms_norm.cu adds the blocks' up, in a fixed order.
//
// forward   in and out: x (N, D) ACTIVATION, rows `stride` elements apart
//           in: w (D) float, or null for ones
//           out: raw (N, D) RESIDUAL, what x was; 1/r (N) float
//           bytes: N · D · (2 · activation + residual), and x once more from the cache
// backward  in and out: dx (N, D) ACTIVATION, rows `stride` elements apart    in: raw, 1/r, w
//           out: partial (blocks, D) float, unless null
//           bytes: N · D · (2 · activation + residual), and dx and raw once more from the cache
//
// Compiled in: HEAD_SIZE = D, THREADS of a block.
#include "common.cuh"
#include "statistic.cuh"

constexpr int WARPS = THREADS / 32, STRIDE = THREADS * WIDTH;
constexpr int STEPS = (HEAD_SIZE + STRIDE - 1) / STRIDE;

extern "C" __global__ void __launch_bounds__(THREADS)
    head_norm(ACTIVATION* x, long long stride, const float* weight, float epsilon, RESIDUAL* raw,
        float* inverse_rms, int rows, int heads) {
    const int row = blockIdx.x;
    x += row * stride, raw += size_t(row) * HEAD_SIZE;
    statistic squares = 0;
    for (int column = threadIdx.x * WIDTH; column < HEAD_SIZE; column += STRIDE) {
        const Eight value = load(x + column);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) squares += statistic(value.at[i]) * value.at[i];
    }
    const statistic exact =
        statistic(1) / sqrt(block_sum<WARPS>(squares) / HEAD_SIZE + epsilon);
    const float inverse = exact, rest = exact - inverse;
    if (threadIdx.x == 0) inverse_rms[row] = inverse;
    for (int column = threadIdx.x * WIDTH; column < HEAD_SIZE; column += STRIDE) {
        Eight value = load(x + column);
        const Eight scale = load_or_ones(weight, column);
        store(raw + column, value);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            value.at[i] *=
                EXACT ? fmaf(inverse, scale.at[i], rest * scale.at[i]) : inverse * scale.at[i];
        store(x + column, value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    head_norm_backward(ACTIVATION* dx, long long stride, const RESIDUAL* raw, const float* weight,
        const float* inverse_rms, float* partial, int rows, int heads) {
    Eight dweight[STEPS] = {};
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        ACTIVATION* dx_row = dx + row * stride;
        const RESIDUAL* raw_row = raw + size_t(row) * HEAD_SIZE;
        const float inverse = inverse_rms[row];
        float dot = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int column = threadIdx.x * WIDTH + step * STRIDE;
            if (column >= HEAD_SIZE) break;
            const Eight gradient = load(dx_row + column), value = load(raw_row + column),
                        scale = load_or_ones(weight, column);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const float product = gradient.at[i] * (value.at[i] * inverse);
                dweight[step].at[i] += product;
                dot += scale.at[i] * product;
            }
        }
        const float mean = block_sum<WARPS>(dot) / HEAD_SIZE;
        for (int column = threadIdx.x * WIDTH; column < HEAD_SIZE; column += STRIDE) {
            const Eight gradient = load(dx_row + column), value = load(raw_row + column),
                        scale = load_or_ones(weight, column);
            Eight out;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                out.at[i] =
                    (gradient.at[i] * scale.at[i] - value.at[i] * inverse * mean) * inverse;
            store(dx_row + column, out);
        }
    }
    if (!partial) return;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = threadIdx.x * WIDTH + step * STRIDE;
        if (column < HEAD_SIZE)
            store(partial + size_t(blockIdx.x) * HEAD_SIZE + column, dweight[step]);
    }
}
