// Shared by every kernel of this folder: element types, 8-element accesses, and sums over a warp or
// a block in a fixed order.
//
// ACTIVATION is the type of what matrix products read and write, RESIDUAL that of the residual
// stream: float, or bfloat16 in the bf16 mode. A kernel has those that it names. Arithmetic is in
// float throughout. Rows are multiples of WIDTH = 8 elements and start on 16-byte boundaries.
#include "bfloat16.cuh"

static_assert(WIDTH == 8, "accesses are written out for 8 elements");
constexpr unsigned WHOLE_WARP = 0xffffffffu;
#define INFINITE __int_as_float(0x7f800000)  // NVRTC has no <math.h>

struct Eight {
    float at[WIDTH];
};

__device__ __forceinline__ Eight load(const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0],
                 high = reinterpret_cast<const float4*>(from)[1];
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// Weights of a norm, which may have none.
__device__ __forceinline__ Eight load_or_ones(const float* weight, int column) {
    if (weight) return load(weight + column);
    return {1, 1, 1, 1, 1, 1, 1, 1};
}

__device__ __forceinline__ Eight load(const bfloat16* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const bfloat16* values = reinterpret_cast<const bfloat16*>(&bits);
    Eight out;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) out.at[i] = values[i];
    return out;
}

__device__ __forceinline__ void store(float* to, const Eight& value) {
    reinterpret_cast<float4*>(to)[0] =
        make_float4(value.at[0], value.at[1], value.at[2], value.at[3]);
    reinterpret_cast<float4*>(to)[1] =
        make_float4(value.at[4], value.at[5], value.at[6], value.at[7]);
}

__device__ __forceinline__ void store(bfloat16* to, const Eight& value) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pack_bf16(value.at[0], value.at[1]), pack_bf16(value.at[2], value.at[3]),
                   pack_bf16(value.at[4], value.at[5]), pack_bf16(value.at[6], value.at[7]));
}

// Eight elements as they lie in memory: fewer registers than their values while they wait.
template <typename T>
struct Raw {
    uint4 bits[sizeof(T) * WIDTH / 16];

    __device__ __forceinline__ void fetch(const T* from) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T)) * WIDTH / 16; ++i)
            bits[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ __forceinline__ Eight value() const {
        return load(reinterpret_cast<const T*>(bits));
    }
};

// The value as it will be read back from memory.
__device__ __forceinline__ float rounded(float value, const float*) { return value; }
__device__ __forceinline__ float rounded(float value, const bfloat16*) {
    return bfloat16(value);
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(WHOLE_WARP, value, distance);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
    return value;
}

// Sum over a block of COUNT warps, the same in every thread; every thread has to take part.
template <int COUNT, typename T>
__device__ __forceinline__ T block_sum(T value) {
    __shared__ T sums[COUNT];
    value = warp_sum(value);
    __syncthreads();  // an earlier sum may still be in use
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = sums[0];
#pragma unroll
    for (int warp = 1; warp < COUNT; ++warp) value += sums[warp];
    return value;
}

template <int COUNT>
__device__ __forceinline__ float block_max(float value) {
    __shared__ float tops[COUNT];
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = value;
    __syncthreads();
    value = tops[0];
#pragma unroll
    for (int warp = 1; warp < COUNT; ++warp) value = fmaxf(value, tops[warp]);
    return value;
}
