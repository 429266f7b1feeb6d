// RMSNorm of every head of queries or keys, in place (QK-norm: Henry et al. 2020, with RMSNorm):
//
//   y = w · x / r,   r = √(mean(x²) + ε) over the head
//
// and backward, in place too, with u = x / r and g = w · dy:
//
//   dx = (g − u · mean(g · u)) / r,   dw = Σ dy · u over all heads of all tokens
//
// A thread takes 8 elements, E / 8 neighbouring threads a head. dw is summed in two passes over
// fixed partial sums (the second is `sum_weight_gradient` of rms_norm.cu), so that equal inputs
// give equal bits.
//
// forward   in and out: x (N, H, E) ACTIVATION, rows `stride` elements apart
//           in: w (E) float, or null for ones
//           out: raw (N, H, E) RESIDUAL, what x was; 1/r (N, H) float
//           bytes: N · H · E · (2 · activation + residual)
// backward  in and out: dx (N, H, E) ACTIVATION, rows `stride` elements apart
//           in: raw, 1/r, w
//           out: partial (blocks, E) float, unless null
//           bytes: N · H · E · (2 · activation + residual)
//
// Compiled in: HEAD_SIZE = E, THREADS of a block.
#include "common.cuh"
#include "statistic.cuh"

constexpr int LANES = HEAD_SIZE / WIDTH;  // threads of a head
constexpr int GROUPS = THREADS / LANES;  // heads that a block takes at a time
static_assert(32 % LANES == 0, "a head lies within a warp");

// The sum over the threads of a head, the same in each.
template <typename T>
__device__ __forceinline__ T head_sum(T value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(WHOLE_WARP, value, distance);
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    head_norm(ACTIVATION* x, long long stride, const float* weight, float epsilon, RESIDUAL* raw,
        float* inverse_rms, int rows, int heads) {
    const int last = rows * heads - 1, index = blockIdx.x * GROUPS + threadIdx.x / LANES;
    const int head = min(index, last), column = threadIdx.x % LANES * WIDTH;
    ACTIVATION* place = x + head / heads * stride + head % heads * HEAD_SIZE + column;
    Eight value = load(place);
    statistic squares = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) squares += statistic(value.at[i]) * value.at[i];
    const statistic exact = statistic(1) / sqrt(head_sum(squares) / HEAD_SIZE + epsilon);
    if (index > last) return;
    const float inverse = exact, rest = exact - inverse;
    if (column == 0) inverse_rms[head] = inverse;
    store(raw + size_t(head) * HEAD_SIZE + column, value);
    const Eight scale = load_or_ones(weight, column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        value.at[i] *=
            EXACT ? fmaf(inverse, scale.at[i], rest * scale.at[i]) : inverse * scale.at[i];
    store(place, value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    head_norm_backward(ACTIVATION* dx, long long stride, const RESIDUAL* raw, const float* weight,
        const float* inverse_rms, float* partial, int rows, int heads) {
    const int group = threadIdx.x / LANES, column = threadIdx.x % LANES * WIDTH;
    const int last = rows * heads - 1;
    const Eight scale = load_or_ones(weight, column);
    Eight dweight = {};
    for (int first = blockIdx.x * GROUPS; first <= last; first += gridDim.x * GROUPS) {
        const int head = min(first + group, last);
        ACTIVATION* place = dx + head / heads * stride + head % heads * HEAD_SIZE + column;
        const Eight gradient = load(place), value = load(raw + size_t(head) * HEAD_SIZE + column);
        const float inverse = inverse_rms[head];
        const bool mine = first + group <= last;
        float dot = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float product = gradient.at[i] * (value.at[i] * inverse);
            if (mine) dweight.at[i] += product;
            dot += scale.at[i] * product;
        }
        const float mean = head_sum(dot) / HEAD_SIZE;
        Eight out;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            out.at[i] = (gradient.at[i] * scale.at[i] - value.at[i] * inverse * mean) * inverse;
        if (mine) store(place, out);
    }
    if (!partial) return;
    __shared__ float sums[GROUPS][HEAD_SIZE];
    store(&sums[group][column], dweight);
    __syncthreads();
    if (threadIdx.x < HEAD_SIZE) {
        float total = sums[0][threadIdx.x];
#pragma unroll
        for (int other = 1; other < GROUPS; ++other) total += sums[other][threadIdx.x];
        partial[size_t(blockIdx.x) * HEAD_SIZE + threadIdx.x] = total;
    }
}
