// SwiGLU behind the product that makes gate and up (Swiglu), and its backward pass behind the one
// that brings the gradient back through `down` (SwigluBackward); swiglu.cuh has the formulas. Gate
// and up are columns of packed, `up` columns apart, as are the rows of W that make them. Twins:
// linear_swiglu and linear_swiglu_backward of ops.py.
//
// forward   gate and up = x Wᵀ, and out = silu(gate) · up
//           in:  x (N, D), W (C, D)
//           out: packed (N, C) bfloat16; out (N, F) bfloat16, or e4m3 with FP8
//           bytes: x, W, packed and out once
// backward  dhidden = scale · x W, which is never stored: gate and up become their gradients, and
//           out is silu(gate) · up again
//           in:  x (N, D), W (D, F), packed
//           out: packed and out; with FP8 instead, all e4m3, the gradient of packed as `quantized`
//           (N, C) and as `across` (C, N), and out as (F, N), by a slot of its own
//           bytes: x, W and out once, packed twice; with FP8 N · (D + 4 C + F) and W
struct Swiglu : NoEpilogue {
    static constexpr int PANELS = FP8 ? 2 : 3, QUANTIZED = FP8;
    static constexpr bool GATE_AND_UP = true;

    __device__ __forceinline__ void compute(Words& words, int i, const Results& x, int block,
        const unsigned (&)[2][4], Thread& thread) const {
        words[0][i] = thread.bf16_pair(x[block], i % 2);
        words[1][i] = thread.bf16_pair(x[block + 16], i % 2);
        // of the rounded numbers, as the backward pass will see them
        const float2 z = unpack_bf16(words[0][i]), up = unpack_bf16(words[1][i]);
        words[2][i] = thread.rounded(0, gated(z.x, up.x), gated(z.y, up.y));
    }
};

struct SwigluBackward : NoEpilogue {
    static constexpr int READS = 2, PANELS = FP8 ? 0 : 3;
    static constexpr int QUANTIZED = FP8 ? 2 : 0, TRANSPOSED = FP8 ? 3 : 0;
    static constexpr bool GATE_AND_UP = true;

    __device__ __forceinline__ void compute(Words& words, int i, const Results& x, int block,
        const unsigned (&packed)[2][4], Thread& thread) const {
        const float2 z = unpack_bf16(packed[0][i]), up = unpack_bf16(packed[1][i]);
        const float* dout = x[block] + i % 2 * 2;
        const Gated first = gated_backward(thread.factor * dout[0], z.x, up.x),
                    second = gated_backward(thread.factor * dout[1], z.y, up.y);
        words[0][i] = thread.rounded(0, first.dgate, second.dgate);
        words[1][i] = thread.rounded(0, first.dup, second.dup);
        words[2][i] = thread.rounded(1, first.out, second.out);
    }
};
