// GELU in the form with tanh (Hendrycks & Gimpel 2016): x σ(2v), v = √(2/π) (x + 0.044715 x³), and
// its derivative, σ + x σ (1 − σ) · 2v′ with σ = σ(2v) and v′ = √(2/π) (1 + 3 · 0.044715 x²)
#include "swiglu.cuh"

constexpr float ROOT = 0.7978845608028654f, CUBE = 0.044715f;

// σ(2v)
__device__ __forceinline__ float gelu_sigma(float x) {
    return sigmoid(2 * ROOT * x * (1.0f + CUBE * x * x));
}

struct GeluGradient {
    float dx, out;
};

__device__ __forceinline__ GeluGradient gelu_gradient(float dout, float x) {
    const float sigma = gelu_sigma(x), angle_slope = 2 * ROOT * (1.0f + 3 * CUBE * x * x);
    return {dout * (sigma + x * sigma * ((1.0f - sigma) * angle_slope)), x * sigma};
}
