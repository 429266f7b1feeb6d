// Adds −Σ weights · logprobs over all targets, and over those of head 0 (every heads-th), to a
// step's losses. One block, sums in float64.
//
// in: logprobs, weights (N · K) float     in and out: losses (2) double     bytes: 8 · N · K
//
// Compiled in: THREADS of the block.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    add_losses(const float* logprobs, const float* weights, int count, int heads, double* losses) {
    double all = 0, first = 0;
#pragma unroll 4
    for (int index = threadIdx.x; index < count; index += THREADS) {
        const double nats = -double(logprobs[index] * weights[index]);
        all += nats;
        if (index % heads == 0) first += nats;
    }
    all = block_sum<THREADS / 32>(all);
    first = block_sum<THREADS / 32>(first);
    if (threadIdx.x == 0) {
        losses[0] += all;
        losses[1] += first;
    }
}
