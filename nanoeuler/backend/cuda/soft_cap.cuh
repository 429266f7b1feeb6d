// A soft cap, cap · tanh(x / cap), and its derivative, 1 − tanh²(x / cap).
//
// tanh errs by a few roundings here, whatever the compiler's options: its own fast one errs by
// 5e-4. Up to 1 it is Lambert's continued fraction, whose sixth convergent errs by less than 1e-8
// there; beyond, 1 − 2 / (exp(2|x|) + 1), which cancels near 0.
struct Capped {
    float value, slope;
};

__device__ __forceinline__ Capped soft_capped(float x, float cap) {
    const float z = x / cap, square = z * z;
    float tangent = z * ((21 * square + 1260) * square + 10395) /
                    (((square + 210) * square + 4725) * square + 10395);
    if (!(square < 1)) tangent = copysignf(1 - 2 / (expf(2 * fabsf(z)) + 1), z);
    return {cap * tangent, 1 - tangent * tangent};
}
