// Cross-entropy of R rows of logits; a target of −1 has no loss and no gradient:
//
//   lse = log Σ exp(logits),   logprob = logit of the target − lse,
//   dlogits = weight · (softmax − one-hot of the target)
//
// The gradient is that of the loss −Σ weights · logprobs and replaces the logits; probabilities are
// never stored. A block owns a row. It keeps the row in registers or, where that is too long, reads
// it twice: so few blocks run at a time that the second read comes from the L2. Rows are `stride`
// elements apart.
//
// forward      in: logits (R, V) ACTIVATION, targets (R) int     out: logprobs, lse (R) float
//              bytes: R · V · activation
// backward     in: logits, targets, weights (R) float, lse       out: logits
//              bytes: 2 · R · V · activation
// both in one  in: logits, targets, weights                      out: logits, logprobs, lse
//              bytes: 2 · R · V · activation
// argmax       in: logits          out: the likeliest ids (R) int; ties go to the lowest id
//
// With FP8, the gradient goes to `e4m3` (R, `stride`), too, as fp8.cuh says, with zeros in the
// padding: another R · V bytes.
//
// Compiled in: VOCAB, THREADS of a block, HELD: whether a row is kept in registers, and FP8.
#include "common.cuh"
#include "fp8.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int VECTORS =
    (VOCAB + WIDTH - 1) / WIDTH;  // the last may reach into the padding of the row
constexpr int STEPS = (VECTORS + THREADS - 1) / THREADS;

#ifndef HELD
#error "compile with -D HELD: whether a row is kept in registers"
#endif
constexpr bool NARROW = sizeof(ACTIVATION) == 2;
constexpr int BLOCKS = HELD && STEPS <= 2   ? (NARROW ? 6 : 5)
                       : HELD && STEPS <= 4 ? (NARROW ? 4 : 3)
                                            : 2;  // at least, on a multiprocessor

__device__ __forceinline__ Eight inside_vocabulary(Eight value, int vector) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (vector * WIDTH + i >= VOCAB) value.at[i] = -INFINITE;
    return value;
}

__device__ __forceinline__ void store_gradient_of(ACTIVATION* logits, int vector,
    const Eight& value, int target, float weight, float lse, Quantized& quantized) {
    Eight gradient;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float probability = expf(value.at[i] - lse);
        gradient.at[i] =
            target < 0 ? 0.0f : weight * (probability - (vector * WIDTH + i == target));
        if (VOCAB % WIDTH && vector * WIDTH + i >= VOCAB) gradient.at[i] = 0;
    }
    store(logits + vector * WIDTH, gradient);
    quantized.store(vector * WIDTH, gradient);
}

#if HELD
struct Row {
    Eight value[STEPS];

    __device__ __forceinline__ Row(const ACTIVATION* logits) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int vector = s * THREADS + threadIdx.x;
            if (vector < VECTORS) value[s] = load(logits + vector * WIDTH);
            value[s] = inside_vocabulary(value[s], vector);
        }
    }
    __device__ __forceinline__ float log_sum_exp() const {
        float top = -INFINITE;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, value[s].at[i]);
        top = block_max<WARPS>(top);
        float total = 0;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) total += expf(value[s].at[i] - top);
        return top + logf(block_sum<WARPS>(total));
    }
    __device__ __forceinline__ void store_gradient(
        ACTIVATION* logits, int target, float weight, float lse, Quantized quantized) const {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int vector = s * THREADS + threadIdx.x;
            if (vector < VECTORS)
                store_gradient_of(logits, vector, value[s], target, weight, lse, quantized);
        }
        quantized.finish();
    }
};

#else
constexpr int AHEAD = 4;  // accesses that a thread starts together

struct Row {
    const ACTIVATION* from;

    __device__ __forceinline__ Row(const ACTIVATION* logits) : from(logits) {}

    template <typename Use>
    __device__ __forceinline__ void each(Use use) const {
#pragma unroll 1
        for (int first = threadIdx.x; first < VECTORS; first += AHEAD * THREADS) {
            Raw<ACTIVATION> raw[AHEAD];
#pragma unroll
            for (int s = 0; s < AHEAD; ++s)
                if (first + s * THREADS < VECTORS)
                    raw[s].fetch(from + (first + s * THREADS) * WIDTH);
#pragma unroll
            for (int s = 0; s < AHEAD; ++s)
                if (first + s * THREADS < VECTORS) use(first + s * THREADS, raw[s].value());
        }
    }
    // Each thread carries its sum along, relative to the highest logit that it has met.
    __device__ __forceinline__ float log_sum_exp() const {
        float top = -3e38f, total = 0;  // the difference of two infinities would be NaN
        each([&](int vector, Eight value) {
            value = inside_vocabulary(value, vector);
            const float before = top;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, value.at[i]);
            total *= expf(before - top);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) total += expf(value.at[i] - top);
        });
        const float highest = block_max<WARPS>(top);
        return highest + logf(block_sum<WARPS>(total * expf(top - highest)));
    }
    __device__ __forceinline__ void store_gradient(
        ACTIVATION* logits, int target, float weight, float lse, Quantized quantized) const {
        each([&](int vector, const Eight& value) {
            store_gradient_of(logits, vector, value, target, weight, lse, quantized);
        });
        quantized.finish();
    }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    cross_entropy(const ACTIVATION* logits, long long stride, const int* targets, float* logprobs,
        float* lses) {
    logits += blockIdx.x * stride;
    const int target = targets[blockIdx.x];
    const float lse = Row(logits).log_sum_exp();
    if (threadIdx.x == 0) {
        lses[blockIdx.x] = lse;
        logprobs[blockIdx.x] = target < 0 ? 0.0f : float(logits[target]) - lse;
    }
}

__device__ __forceinline__ Quantized copy_of_row(
    unsigned char* e4m3, long long stride, Slot* slot) {
    Quantized row(e4m3 + blockIdx.x * stride, slot);
    if (FP8)
        for (int at = (VECTORS + threadIdx.x) * WIDTH; at < stride; at += THREADS * WIDTH)
            *reinterpret_cast<uint2*>(row.values + at) = make_uint2(0, 0);
    return row;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    cross_entropy_backward(ACTIVATION* logits, long long stride, const int* targets,
        const float* weights, const float* lses, unsigned char* e4m3, Slot* slot) {
    logits += blockIdx.x * stride;
    Row(logits).store_gradient(logits, targets[blockIdx.x], weights[blockIdx.x], lses[blockIdx.x],
        copy_of_row(e4m3, stride, slot));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    cross_entropy_with_gradient(ACTIVATION* logits, long long stride, const int* targets,
        const float* weights, float* logprobs, float* lses, unsigned char* e4m3, Slot* slot) {
    logits += blockIdx.x * stride;
    const int target = targets[blockIdx.x];
    // read before the sum's barriers, written over after them
    const float of_target = target < 0 ? 0.0f : float(logits[target]);
    const Row row(logits);
    const float lse = row.log_sum_exp();
    if (threadIdx.x == 0) {
        lses[blockIdx.x] = lse;
        logprobs[blockIdx.x] = target < 0 ? 0.0f : of_target - lse;
    }
    row.store_gradient(logits, target, weights[blockIdx.x], lse,
        copy_of_row(e4m3, stride, slot));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const ACTIVATION* logits, long long stride, int* likeliest) {
    __shared__ float tops[WARPS];
    __shared__ int ids[WARPS];
    logits += blockIdx.x * stride;
    float top = -INFINITE;
    int id = VOCAB;
    for (int column = threadIdx.x; column < VOCAB; column += THREADS) {
        const float value = logits[column];
        if (value > top) top = value, id = column;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(WHOLE_WARP, top, distance);
        const int where = __shfl_xor_sync(WHOLE_WARP, id, distance);
        if (other > top || (other == top && where < id)) top = other, id = where;
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top, ids[threadIdx.x / 32] = id;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < WARPS; ++warp)
            if (tops[warp] > top || (tops[warp] == top && ids[warp] < id))
                top = tops[warp], id = ids[warp];
        likeliest[blockIdx.x] = id;
    }
}
