// Soft caps of logits (Gemma 2, 2024), x = cap · tanh(x / cap) in place; soft_cap.cuh has tanh.
//
// soft_cap           in and out: x (N, F) ACTIVATION, contiguous    in: cap
//                    out: slope (N, F) ACTIVATION, the derivative, or null
//                    bytes: 2 · N · F · activation, with slopes 3
// soft_cap_float     the same of float logits, without slopes
// soft_cap_backward  in and out: dx (N, F) ACTIVATION    in: slope    bytes: 3 · N · F · activation
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"
#include "soft_cap.cuh"

// Where the thread's 8 elements lie; past the end: none.
__device__ __forceinline__ size_t place(int rows, bool& there) {
    const size_t at = (size_t(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    there = at < size_t(rows) * FFN;
    return at;
}

template <typename T>
__device__ __forceinline__ void cap_in_place(T* x, float cap, T* slope, int rows) {
    bool there;
    const size_t at = place(rows, there);
    if (!there) return;
    Eight value = load(x + at), slopes;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const Capped one = soft_capped(value.at[i], cap);
        value.at[i] = one.value, slopes.at[i] = one.slope;
    }
    store(x + at, value);
    if (slope) store(slope + at, slopes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    soft_cap(ACTIVATION* x, float cap, ACTIVATION* slope, int rows) {
    cap_in_place(x, cap, slope, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    soft_cap_float(float* x, float cap, float* slope, int rows) {
    cap_in_place(x, cap, slope, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    soft_cap_backward(ACTIVATION* dx, const ACTIVATION* slope, int rows) {
    bool there;
    const size_t at = place(rows, there);
    if (!there) return;
    Eight value = load(dx + at);
    const Eight slopes = load(slope + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.at[i] *= slopes.at[i];
    store(dx + at, value);
}
