// SwiGLU (Shazeer 2020, eq. 6) of one element, and its derivative:
//
//   out = silu(z) · up,   silu(z) = z σ(z)
//   dup = dout · silu(z),   dgate = dout · up · (σ(z) + silu(z) (1 − σ(z)))

__device__ __forceinline__ float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

__device__ __forceinline__ float gated(float z, float up) { return z * sigmoid(z) * up; }

// The same with one operation less, as decoding takes it. It rounds differently, so that each
// kernel keeps to one of the two.
__device__ __forceinline__ float gated_by_division(float z, float up) {
    return z / (1.0f + expf(-z)) * up;
}

struct Gated {
    float dgate, dup, out;
};

__device__ __forceinline__ Gated gated_backward(float dout, float z, float up) {
    const float sigma = sigmoid(z), silu = z * sigma;
    Gated one;
    one.dup = dout * silu;
    one.dgate = dout * up * (sigma + silu * (1.0f - sigma));
    one.out = silu * up;
    return one;
}
