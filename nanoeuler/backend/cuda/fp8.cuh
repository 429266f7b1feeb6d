// Numbers of 8 bits: e4m3 (4 bits of exponent, 3 of mantissa, at most 448), a tensor's values times
// a power of two that all of them share. Larger ones become ±448, but what is not finite becomes
// NaN: it reaches the loss, and the step is left out as in other precisions.
//
// A tensor's slot holds that scale and its inverse, by which products divide, and collects the
// largest magnitude that was met, from which the scales of later steps are made. The largest of
// some floats does not depend on their order, and floats that are not negative are ordered as their
// bits are: hence atomicMax.
//
// Gradients of weights are sums over tokens, along which wgmma then has to read: their factors are
// copies with the tokens last. Of each 16 tokens those lie in the order 0, 8, 1, 9, … 7, 15, as a
// result of wgmma has them side by side; to a sum their order does not matter.

struct Slot {
    float inverse, scale;
    unsigned largest;  // bits of a float
    unsigned saturated;  // steps in which a value was too large
};

constexpr float E4M3_MAX = 448;

__device__ __forceinline__ unsigned e4m3_pair(float scale, float low, float high) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    low *= scale;
    high *= scale;
    low += low - low;  // ∞ − ∞ is NaN
    high += high - high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    __trap();  // the engine refuses fp8 on such a device
    return 0;
#endif
}

// The sum of the four numbers of a word.
__device__ __forceinline__ float e4m3_sum(unsigned word) {
#if __CUDA_ARCH__ >= 890
    float total = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned pair;  // of float16, which holds every number of e4m3
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)(word >> 16 * half)));
        float low, high;
        asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
            : "=f"(low), "=f"(high)
            : "r"(pair));
        total += low + high;
    }
    return total;
#else
    __trap();
    return 0;
#endif
}

__device__ __forceinline__ float larger(float top, float value) { return fmaxf(top, fabsf(value)); }

// The threads of a warp together.
__device__ __forceinline__ void note_largest(Slot* slot, float top) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    const unsigned bits = __float_as_uint(top);
    if (threadIdx.x % 32 == 0 && bits > *reinterpret_cast<volatile unsigned*>(&slot->largest))
        atomicMax(&slot->largest, bits);
}

// The bytes of four words as columns become rows.
__device__ __forceinline__ void turn(unsigned (&words)[4]) {
    const unsigned a = __byte_perm(words[0], words[1], 0x5140),
                   b = __byte_perm(words[2], words[3], 0x5140),
                   c = __byte_perm(words[0], words[1], 0x7362),
                   d = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(a, b, 0x5410), words[1] = __byte_perm(a, b, 0x7632);
    words[2] = __byte_perm(c, d, 0x5410), words[3] = __byte_perm(c, d, 0x7632);
}

#ifdef WIDTH
// Where a kernel writes a copy of its result in e4m3; without FP8 it writes none.
struct Quantized {
    unsigned char* values;
    Slot* slot;
    float scale, top;

    __device__ __forceinline__ Quantized(unsigned char* values, Slot* slot)
        : values(values), slot(slot), scale(FP8 ? slot->scale : 0.0f), top(0) {}

    __device__ __forceinline__ uint2 round(const Eight& value) {
        unsigned pairs[WIDTH / 2];
#pragma unroll
        for (int i = 0; i < WIDTH; i += 2) {
            const float low = value.at[i], high = value.at[i + 1];
            pairs[i / 2] = e4m3_pair(scale, low, high);
            top = larger(larger(top, low), high);
        }
        return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
    }

    __device__ __forceinline__ void store(size_t at, const Eight& value) {
        if (FP8) *reinterpret_cast<uint2*>(values + at) = round(value);
    }

    // The threads of a warp together, once they have stored all.
    __device__ __forceinline__ void finish() const {
        if (FP8) note_largest(slot, top);
    }
};
#endif
