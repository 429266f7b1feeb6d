// ReLU²:  out = max(x, 0)²,  dx = dout · 2 max(x, 0)
//
// relu2          in: x (N, F) ACTIVATION
//                out: out (N, F)                       bytes: 2 · N · F · activation
// relu2_backward in: dout, x (N, F)
//                out: dx, and out once more, so that it need not be kept; each may replace an input
//                                                      bytes: 4 · N · F · activation
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    relu2(const ACTIVATION* x, ACTIVATION* out, int rows) {
    const size_t at = (size_t(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (at >= size_t(rows) * FFN) return;
    Eight value = load(x + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        // the comparison lets a NaN pass, which fmaxf would not
        const float positive = value.at[i] < 0 ? 0 : value.at[i];
        value.at[i] = positive * positive;
    }
    store(out + at, value);
}

// `out` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    relu2_backward(const ACTIVATION* dout, const ACTIVATION* x, ACTIVATION* dx, ACTIVATION* out,
        int rows) {
    const size_t at = (size_t(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (at >= size_t(rows) * FFN) return;
    const Eight value = load(x + at), gradient = load(dout + at);
    Eight slope, again;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float positive = value.at[i] < 0 ? 0 : value.at[i];
        slope.at[i] = gradient.at[i] * 2 * positive;
        again.at[i] = positive * positive;
    }
    store(dx + at, slope);
    if (out) store(out + at, again);
}
