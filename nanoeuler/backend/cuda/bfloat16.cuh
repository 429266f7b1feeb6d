// bfloat16: the upper half of a float. CUDA's <cuda_bf16.h> has it, too, but is 700 kB for the
// compiler to read.

struct bfloat16 {
    unsigned short bits;

    bfloat16() = default;
    explicit __device__ __forceinline__ bfloat16(float value) {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    // By Hopper's own instruction there: with shifts, norms of wide rows ran out of registers.
    __device__ __forceinline__ operator float() const {
        float value;
#if __CUDA_ARCH__ >= 900
        asm("cvt.f32.bf16 %0, %1;" : "=f"(value) : "h"(bits));
#else
        asm("mov.b32 %0, {0, %1};" : "=f"(value) : "h"(bits));
#endif
        return value;
    }
};

// Two of them in a word, the first in its lower half.
__device__ __forceinline__ unsigned pack_bf16(float first, float second) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

// Two instructions; the conversions above take three on Hopper, for two halves of a word.
__device__ __forceinline__ float2 unpack_bf16(unsigned word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
