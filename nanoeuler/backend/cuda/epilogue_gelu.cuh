// Bias and GELU behind the product in front of them (Gelu), and GELU's backward pass behind the one
// that brings the gradient back through `down` (GeluBackward); gelu.cuh has the formulas. For FP8
// alone: in bfloat16 cuBLASLt is as fast. Twins: linear_gelu and linear_gelu_backward of ops.py.
//
// forward   packed = x Wᵀ + bias, and out = gelu(packed)
//           in:  x (N, D), W (F, D); bias (F) bfloat16
//           out: packed (N, F) bfloat16; out (N, F) e4m3
//           bytes: x, W, packed and out once
// backward  dhidden = scale · x W, which is never stored: out is gelu(packed) again
//           in:  x (N, D), W (F, D), packed
//           out: the gradient of packed as `quantized` (N, F) and as `across` (F, N), and out
//           (F, N) by a slot of its own, all e4m3
//           bytes: N · (D + 5 F) and W
struct Gelu : NoEpilogue {
    static constexpr int PANELS = 2, QUANTIZED = 2;

    unsigned biases[TILE_COLUMNS / 8];  // this lane's, in pairs

    __device__ __forceinline__ void fetch(const Arguments& given, int, int column, int lane) {
#pragma unroll
        for (int block = 0; block < TILE_COLUMNS / 8; block++)
            biases[block] = given.bias[column / 2 + block * 4 + lane % 4];
    }

    __device__ __forceinline__ void compute(Words& words, int i, const Results& x, int block,
        const unsigned (&)[2][4], Thread& thread) const {
#pragma unroll
        for (int panel = 0; panel < 2; panel++) {
            const float *sum = x[block + 8 * panel] + i % 2 * 2, factor = thread.factor;
            const float2 bias = unpack_bf16(biases[block + 8 * panel]);
            words[panel][i] = pack_bf16(fmaf(factor, sum[0], bias.x), fmaf(factor, sum[1], bias.y));
            const float2 z = unpack_bf16(words[panel][i]);
            words[2 + panel][i] = thread.rounded(0, z.x * gelu_sigma(z.x), z.y * gelu_sigma(z.y));
        }
    }
};

struct GeluBackward : NoEpilogue {
    static constexpr int READS = 1, QUANTIZED = 1, TRANSPOSED = 2;

    __device__ __forceinline__ void compute(Words& words, int i, const Results& x, int block,
        const unsigned (&packed)[2][4], Thread& thread) const {
        const float2 z = unpack_bf16(packed[0][i]);
        const float* dout = x[block] + i % 2 * 2;
        const GeluGradient first = gelu_gradient(thread.factor * dout[0], z.x),
                           second = gelu_gradient(thread.factor * dout[1], z.y);
        words[0][i] = thread.rounded(0, first.dx, second.dx);
        words[1][i] = thread.rounded(1, first.out, second.out);
    }
};
