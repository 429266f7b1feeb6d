// Updates of each element by itself, on flat buffers in one launch. The gradient's norm is clipped
// and the host reads nothing: g = scale · gradient
//
// adamw (Loshchilov & Hutter 2019, algorithm 2):
//
//   m = β₁ m + (1 − β₁) g,   v = β₂ v + (1 − β₂) g²,   p −= lr · (m̂ / (√v̂ + ε) + decay · p)
//
// lion (Chen et al. 2023, algorithm 2):
//
//   p −= lr · (sign(β₁ m + (1 − β₁) g) + decay · p),   then   m = β₂ m + (1 − β₂) g
//
// Four launches: partial sums of squares and the step's scalars from them, which serve every
// optimizer; the bias corrections, and the update. When the norm or the loss is not finite, the
// update changes nothing and is counted. It also writes the copy of the parameters that products
// read.
//
// squared_norm   in: gradients (P) float
//                out: partial (blocks) double
//                bytes: 4 P
// prepare        in: partial, schedule (lr, updates done), losses
//                out: scalars (STEP_SCALARS), report (norm, updates left out), double
// correct        in: scalars
//                out: corrected (2) float: lr / (1 − β₁ᵗ), 1 / (1 − β₂ᵗ)
// adamw          in: parameters, gradients, m, v (P) float; rates (P / RATE_BLOCK, 2) float: what
//                lr and lr · decay are multiplied by; a rate of 0 leaves all as it is
//                out: parameters, m, v, working (P) bfloat16
//                bytes: 28 P, and 2 P for working
// lion           in: parameters, gradients, m (P) float; rates as above
//                out: parameters, m, working           bytes: 20 P, and 2 P for working
//
// Compiled in: THREADS of a block, NORM_THREADS of one of squared_norm, STEP_SCALARS,
// RATE_BLOCK.
#include "common.cuh"
#include "update.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    squared_norm(const float* values, long long count, double* partial) {
    double total = 0;
    for (long long index = ((long long)blockIdx.x * NORM_THREADS + threadIdx.x) * WIDTH;
        index < count; index += (long long)gridDim.x * NORM_THREADS * WIDTH) {
        const Eight value = load(values + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) total += double(value.at[i]) * value.at[i];
    }
    total = block_sum<NORM_THREADS / 32>(total);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    prepare(const double* partial, int blocks, const double* schedule, const double* losses,
        double clip_norm, double* scalars, double* report) {
    double total = 0;
    for (int block = threadIdx.x; block < blocks; block += THREADS) total += partial[block];
    total = block_sum<THREADS / 32>(total);
    if (threadIdx.x == 0) {
        const double norm = sqrt(total);
        const bool finite = isfinite(norm) && isfinite(losses[0]);
        report[0] = norm;
        report[1] += !finite;
        scalars[FINITE] = finite;
        scalars[CLIPPING] = fmin(1.0, clip_norm / (norm + 1e-6));
        scalars[RATE] = schedule[0];
        scalars[UPDATE] = schedule[1] + 1;
    }
}

extern "C" __global__ void correct(
    const double* scalars, double beta1, double beta2, float* corrected) {
    corrected[0] = scalars[RATE] / (1 - pow(beta1, scalars[UPDATE]));
    corrected[1] = 1 / (1 - pow(beta2, scalars[UPDATE]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw(float* parameters, bfloat16* working, const float* gradients, float* first, float* second,
        const float2* rates, long long count, const double* scalars, const float* corrected,
        float beta1, float beta2, float epsilon, float weight_decay) {
    const long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (index >= count || scalars[FINITE] == 0) return;
    const float2 multiples = rates[index / RATE_BLOCK];
    if (multiples.x == 0) return;
    const float scale = scalars[CLIPPING], learning_rate = scalars[RATE];
    const float rate = corrected[0] * multiples.x, correction = corrected[1],
                keep = 1 - learning_rate * multiples.y * weight_decay;
    Eight p = load(parameters + index), m = load(first + index), v = load(second + index);
    const Eight raw = load(gradients + index);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float g = raw.at[i] * scale;
        m.at[i] = beta1 * m.at[i] + (1 - beta1) * g;
        v.at[i] = beta2 * v.at[i] + (1 - beta2) * g * g;
        p.at[i] = keep * p.at[i] - rate * m.at[i] / (sqrtf(v.at[i] * correction) + epsilon);
    }
    store(parameters + index, p);
    store(first + index, m);
    store(second + index, v);
    if (working) store(working + index, p);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    lion(float* parameters, bfloat16* working, const float* gradients, float* momentum,
        const float2* rates, long long count, const double* scalars, float beta1, float beta2,
        float weight_decay) {
    const long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (index >= count || scalars[FINITE] == 0) return;
    const float2 multiples = rates[index / RATE_BLOCK];
    if (multiples.x == 0) return;
    const float scale = scalars[CLIPPING], learning_rate = scalars[RATE];
    const float rate = learning_rate * multiples.x,
                keep = 1 - learning_rate * multiples.y * weight_decay;
    Eight p = load(parameters + index), m = load(momentum + index);
    const Eight raw = load(gradients + index);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float g = raw.at[i] * scale, direction = beta1 * m.at[i] + (1 - beta1) * g;
        const float sign = float(direction > 0) - float(direction < 0);
        p.at[i] = keep * p.at[i] - rate * sign;
        m.at[i] = beta2 * m.at[i] + (1 - beta2) * g;
    }
    store(parameters + index, p);
    store(momentum + index, m);
    if (working) store(working + index, p);
}

// Writes the copy of the parameters that products read: bytes 6 P.
extern "C" __global__ void __launch_bounds__(THREADS)
    refresh(const float* parameters, bfloat16* working, long long count) {
    const long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (index < count) store(working + index, load(parameters + index));
}

// The way back, of gradients that were summed in bfloat16: bytes 6 P.
extern "C" __global__ void __launch_bounds__(THREADS)
    widen(const bfloat16* rounded, float* values, long long count) {
    const long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (index < count) store(values + index, load(rounded + index));
}
