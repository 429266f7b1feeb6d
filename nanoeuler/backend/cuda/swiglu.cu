// SwiGLU, forward and backward; the formulas are in swiglu.cuh.
//
// gate and up lie in the rows of one packed product, `stride` elements apart.
//
// forward   in: gate, up (N, F) ACTIVATION         out: out (N, F) ACTIVATION, contiguous
//           bytes: 3 · N · F · activation
// backward  in: dout (N, F), gate, up
//           out: dgate, dup, and out once more, so that it need not be kept; each may replace an
//           input
//           bytes: 6 · N · F · activation
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"
#include "swiglu.cuh"

constexpr int VECTORS = FFN / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu(const ACTIVATION* gate, const ACTIVATION* up, long long stride, ACTIVATION* out,
        int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const Eight z = load(gate + row * stride + column), factor = load(up + row * stride + column);
    Eight product;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) product.at[i] = gated(z.at[i], factor.at[i]);
    store(out + size_t(row) * FFN + column, product);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu_backward(const ACTIVATION* dout, const ACTIVATION* gate, const ACTIVATION* up,
        long long stride, ACTIVATION* dgate, ACTIVATION* dup, long long gradient_stride,
        ACTIVATION* out, int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const Eight z = load(gate + row * stride + column), factor = load(up + row * stride + column),
                gradient = load(dout + size_t(row) * FFN + column);
    Eight of_gate, of_up, product;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const Gated one = gated_backward(gradient.at[i], z.at[i], factor.at[i]);
        of_gate.at[i] = one.dgate;
        of_up.at[i] = one.dup;
        product.at[i] = one.out;
    }
    store(dgate + row * gradient_stride + column, of_gate);
    store(dup + row * gradient_stride + column, of_up);
    if (out) store(out + size_t(row) * FFN + column, product);
}
