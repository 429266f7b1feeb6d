// Groups of warps of a block that take tiles of its keys in turn, in the forward pass of
// attention.cu. Each keeps to its own pace, so that one multiplies while another computes its
// softmax. At the end they put together what they found.
//
// Compiled in: HEADS, POSITIONS, KEY_GROUPS and FP8, as attention.cu says.
#include "attention_tiles.cuh"

constexpr int SHARE = HEAD_BLOCKS / KEY_GROUPS;  // blocks of columns that a group writes
constexpr int GROUP_THREADS = HEADS * POSITIONS * 2;  // a warp owns 16 rows

// await_copies for the copies of a group.
template <int PENDING>
__device__ __forceinline__ void await_copies_of(int group) {
    if constexpr (KEY_GROUPS == 1) {
        await_copies<PENDING>();
    } else {
        await_own_copies<PENDING>();
        asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP_THREADS) : "memory");
    }
}

// Puts together what `used` groups found, those that have keys. Group g leaves with SHARE blocks of
// columns, from g · SHARE on, and with `top` and `total` of all groups. To be called by every
// thread. It overwrites shared memory from `place` on.
__device__ __forceinline__ void put_together(float (&share)[SHARE][4],
    const float (&sums)[HEAD_BLOCKS][4], float (&top)[2], float (&total)[2], float factor,
    int place, int used) {
    constexpr int NUMBERS = HEAD_BLOCKS + 1;  // of four
    static_assert(HEAD_BLOCKS % KEY_GROUPS == 0, "whole blocks of columns");
    float4* numbers = reinterpret_cast<float4*>(shared + place) + threadIdx.x % GROUP_THREADS;
    const int group = threadIdx.x / GROUP_THREADS;
    auto at = [&](int other, int i) -> float4& {
        return numbers[(other * NUMBERS + i) * GROUP_THREADS];
    };
    __syncthreads();  // tiles are not read any more
    if (group < used) {
        at(group, HEAD_BLOCKS) = make_float4(top[0], top[1], total[0], total[1]);
#pragma unroll
        for (int j = 0; j < HEAD_BLOCKS; j++)
            at(group, j) = make_float4(sums[j][0], sums[j][1], sums[j][2], sums[j][3]);
    }
    __syncthreads();
    float4 found[KEY_GROUPS];
    top[0] = top[1] = NEVER, total[0] = total[1] = 0;
#pragma unroll
    for (int other = 0; other < KEY_GROUPS; other++) {
        found[other] = other < used ? at(other, HEAD_BLOCKS) : make_float4(NEVER, NEVER, 0, 0);
        top[0] = fmaxf(top[0], found[other].x), top[1] = fmaxf(top[1], found[other].y);
    }
    clear(share);
    const float shift[2] = {
        top[0] == NEVER ? 0 : top[0] * factor, top[1] == NEVER ? 0 : top[1] * factor};
#pragma unroll
    for (int other = 0; other < KEY_GROUPS; other++) {
        if (other >= used) break;
        const float upper = power(found[other].x * factor - shift[0]),
                    lower = power(found[other].y * factor - shift[1]);
        total[0] = fmaf(found[other].z, upper, total[0]);
        total[1] = fmaf(found[other].w, lower, total[1]);
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
            const float4 its = at(other, group * SHARE + j);
            share[j][0] = fmaf(its.x, upper, share[j][0]);
            share[j][1] = fmaf(its.y, upper, share[j][1]);
            share[j][2] = fmaf(its.z, lower, share[j][2]);
            share[j][3] = fmaf(its.w, lower, share[j][3]);
        }
    }
}

// Writes a share of this warp's 16 rows, row r times factor[r / 8], `count` of them.
__device__ __forceinline__ void store_share(const float (&share)[SHARE][4],
    const float (&factor)[2], element* target, int stride, int count) {
    static_assert(KEY_GROUPS == 1 || !FP8, "shares are not written in e4m3");
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = lane / 4 + 8 * half;
        element* to = target + (long long)row * stride + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < SHARE; j++)
            if (row < count)
                store_two(to + 8 * j, share[j][2 * half] * factor[half],
                    share[j][2 * half + 1] * factor[half]);
    }
}
