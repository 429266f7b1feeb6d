// Cross-entropy of R rows of logits; a target of −1 has no loss and no gradient:
//
//   lse = log Σ exp(logits),   logprob = logit of the target − lse,   dlogits = weight · (softmax − one-hot of the target)
//
// of the loss −Σ weights · logprobs. The gradient takes the place of the logits; probabilities are never stored. VOCAB and
// THREADS of a block are compiled in; a block owns a row and keeps it in registers. Rows are `stride` elements apart.
//
// forward         in: logits (R, V) ACTIVATION, targets (R) int       out: logprobs, lse (R) float     bytes: R · V · activation
// backward        in: logits, targets, weights (R) float, lse         out: logits                      bytes: 2 · R · V · activation
// both in one     in: logits, targets, weights                        out: logits, logprobs, lse       bytes: 2 · R · V · activation
// argmax          in: logits                                          out: the likeliest ids (R) int, of equals the lowest
#include "common.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int VECTORS = (VOCAB + WIDTH - 1) / WIDTH;  // the last may reach into the padding of the row
constexpr int STEPS = (VECTORS + THREADS - 1) / THREADS;

struct Row {
    Eight value[STEPS];
};

__device__ __forceinline__ Row load_row(const ACTIVATION* logits) {
    Row row;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * THREADS + threadIdx.x;
        if (vector < VECTORS) row.value[s] = load(logits + vector * WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            if (vector * WIDTH + i >= VOCAB) row.value[s].at[i] = -INFINITE;
    }
    return row;
}

__device__ __forceinline__ float log_sum_exp(const Row& row) {
    float top = -INFINITE;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, row.value[s].at[i]);
    top = block_max<WARPS>(top);
    float total = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) total += expf(row.value[s].at[i] - top);
    return top + logf(block_sum<WARPS>(total));
}

__device__ __forceinline__ void store_gradient(ACTIVATION* logits, const Row& row, int target, float weight, float lse) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * THREADS + threadIdx.x;
        if (vector < VECTORS) {
            Eight gradient;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const float probability = expf(row.value[s].at[i] - lse);
                gradient.at[i] = target < 0 ? 0.0f : weight * (probability - (vector * WIDTH + i == target));
            }
            store(logits + vector * WIDTH, gradient);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(const ACTIVATION* logits, long long stride, const int* targets, float* logprobs, float* lses) {
    logits += blockIdx.x * stride;
    const int target = targets[blockIdx.x];
    const float lse = log_sum_exp(load_row(logits));
    if (threadIdx.x == 0) {
        lses[blockIdx.x] = lse;
        logprobs[blockIdx.x] = target < 0 ? 0.0f : to_float(logits[target]) - lse;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_backward(ACTIVATION* logits, long long stride, const int* targets, const float* weights,
                                                                             const float* lses) {
    logits += blockIdx.x * stride;
    store_gradient(logits, load_row(logits), targets[blockIdx.x], weights[blockIdx.x], lses[blockIdx.x]);
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_with_gradient(ACTIVATION* logits, long long stride, const int* targets, const float* weights,
                                                                                  float* logprobs, float* lses) {
    logits += blockIdx.x * stride;
    const int target = targets[blockIdx.x];
    const float of_target = target < 0 ? 0.0f : to_float(logits[target]);  // read before the sum's barriers, written over after them
    const Row row = load_row(logits);
    const float lse = log_sum_exp(row);
    if (threadIdx.x == 0) {
        lses[blockIdx.x] = lse;
        logprobs[blockIdx.x] = target < 0 ? 0.0f : of_target - lse;
    }
    store_gradient(logits, row, target, weights[blockIdx.x], lse);
}

extern "C" __global__ void __launch_bounds__(THREADS) argmax(const ACTIVATION* logits, long long stride, int* likeliest) {
    __shared__ float tops[WARPS];
    __shared__ int places[WARPS];
    logits += blockIdx.x * stride;
    float top = -INFINITE;
    int place = VOCAB;
    for (int column = threadIdx.x; column < VOCAB; column += THREADS) {
        const float value = to_float(logits[column]);
        if (value > top) top = value, place = column;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(WHOLE_WARP, top, distance);
        const int where = __shfl_xor_sync(WHOLE_WARP, place, distance);
        if (other > top || (other == top && where < place)) top = other, place = where;
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top, places[threadIdx.x / 32] = place;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < WARPS; ++warp)
            if (tops[warp] > top || (tops[warp] == top && places[warp] < place)) top = tops[warp], place = places[warp];
        likeliest[blockIdx.x] = place;
    }
}
