// Muon (Jordan et al. 2024) on `count` matrices of one shape, `size` elements each, around products
// that make them orthogonal:
//
//   m = μ m + (1 − μ) g,   u = μ m + (1 − μ) g,   x = u / ‖u‖,   p −= lr · (scale · y + decay · p)
//
// with g = clipping · gradient, and y what the products make of x.
//
// momentum    in: gradients, m (P) float; offsets (count) of the matrices in them
//             out: m; x (count, size) ACTIVATION, not yet divided; partial (count, PARTS) float
//             bytes of each element: 12 + activation
// normalize   in and out: x; in: partial
//             bytes: 2 · activation
// apply       in: y (count, size) ACTIVATION, parameters
//             out: parameters (P) float; working (P) bfloat16, unless null
//             bytes: 8 + activation, and 2 for working
//
// Compiled in: THREADS of a block, PARTS: blocks of a matrix, STEP_SCALARS.
#include "common.cuh"
#include "update.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    momentum(const float* gradients, float* moments, const long long* offsets, long long size,
        const double* scalars, float mu, ACTIVATION* x, float* partial) {
    const long long offset = offsets[blockIdx.y];
    const float share = (1 - mu) * float(scalars[CLIPPING]);
    const bool finite = scalars[FINITE] != 0;
    float total = 0;
    for (long long index = (blockIdx.x * THREADS + threadIdx.x) * WIDTH; finite && index < size;
        index += PARTS * THREADS * WIDTH) {
        Eight moment = load(moments + offset + index), update = load(gradients + offset + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float gradient = share * update.at[i];
            moment.at[i] = mu * moment.at[i] + gradient;
            update.at[i] = mu * moment.at[i] + gradient;
            total += update.at[i] * update.at[i];
        }
        store(moments + offset + index, moment);
        store(x + blockIdx.y * size + index, update);
    }
    total = block_sum<THREADS / 32>(total);
    if (threadIdx.x == 0) partial[blockIdx.y * PARTS + blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    normalize(ACTIVATION* x, const float* partial, long long size) {
    float total = threadIdx.x < PARTS ? partial[blockIdx.y * PARTS + threadIdx.x] : 0.0f;
    const float factor = 1 / (sqrtf(block_sum<THREADS / 32>(total)) + 1e-20f);
    for (long long index = (blockIdx.x * THREADS + threadIdx.x) * WIDTH; index < size;
        index += PARTS * THREADS * WIDTH) {
        ACTIVATION* here = x + blockIdx.y * size + index;
        Eight value = load(here);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) value.at[i] *= factor;
        store(here, value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    apply(float* parameters, bfloat16* working, const long long* offsets, long long size,
        const ACTIVATION* y, const double* scalars, float scale, float weight_decay) {
    if (scalars[FINITE] == 0) return;
    const long long offset = offsets[blockIdx.y];
    const float rate = scalars[RATE], keep = 1 - rate * weight_decay;
    for (long long index = (blockIdx.x * THREADS + threadIdx.x) * WIDTH; index < size;
        index += PARTS * THREADS * WIDTH) {
        Eight p = load(parameters + offset + index);
        const Eight update = load(y + blockIdx.y * size + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) p.at[i] = keep * p.at[i] - rate * scale * update.at[i];
        store(parameters + offset + index, p);
        if (working) store(working + offset + index, p);
    }
}
