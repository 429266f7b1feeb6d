// GEGLU (Shazeer 2020, eq. 6), out = gelu(gate) · up; gelu.cuh has the formulas of GELU.
//
// gate and up lie in the rows of one packed product, `stride` elements apart.
//
// geglu           in: gate, up (N, F) ACTIVATION       out: out (N, F) ACTIVATION, contiguous
//                 bytes: 3 · N · F · activation
// geglu_backward  in and out: dout (N, F), in whose place `out` comes
//                 in: gate, up; out: dgate, dup, which may replace them
//                 bytes: 6 · N · F · activation
//
// Compiled in: FFN = F, THREADS of a block.
#include "common.cuh"
#include "gelu.cuh"

constexpr int VECTORS = FFN / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
    geglu(const ACTIVATION* gate, const ACTIVATION* up, long long stride, ACTIVATION* out,
        int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const Eight z = load(gate + row * stride + column), factor = load(up + row * stride + column);
    Eight product;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) product.at[i] = z.at[i] * gelu_sigma(z.at[i]) * factor.at[i];
    store(out + size_t(row) * FFN + column, product);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    geglu_backward(ACTIVATION* dout, const ACTIVATION* gate, const ACTIVATION* up,
        long long stride, ACTIVATION* dgate, ACTIVATION* dup, long long gradient_stride,
        int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const Eight z = load(gate + row * stride + column), factor = load(up + row * stride + column),
                gradient = load(dout + size_t(row) * FFN + column);
    Eight of_gate, of_up, product;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const GeluGradient one = gelu_gradient(gradient.at[i] * factor.at[i], z.at[i]);
        of_gate.at[i] = one.dx;
        of_up.at[i] = gradient.at[i] * one.out;
        product.at[i] = one.out * factor.at[i];
    }
    store(dgate + row * gradient_stride + column, of_gate);
    store(dup + row * gradient_stride + column, of_up);
    store(dout + size_t(row) * FFN + column, product);
}
