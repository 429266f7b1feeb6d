// Shared by both kernels of attention for new tokens: decode_attention.cu and, on matrix units,
// many_rows_attention.cuh.
//
// Compiled in: HEADS, KV_HEADS, HEAD_SIZE, TOGETHER, and what slots.cuh names.
#include "rotation.cuh"
#include "slots.cuh"

constexpr int CHUNKS = HEAD_SIZE / WIDTH, HALF = HEAD_SIZE / 2, TOKEN = KV_HEADS * HEAD_SIZE;
constexpr float NEVER = -1e30f;  // below any score; unlike infinities, two have a difference
constexpr float LOG2E = 1.44269504f;  // scores are in powers of 2

// Norm and rotation of a head at a position. CHUNKS neighbouring lanes have eight elements each, a
// lane's from `column` on.
struct Place {
    int column;
    Eight cos, sin;

    __device__ __forceinline__
    Place(const float* cosine, const float* sine, int position, int column)
        : column(column) {
        const size_t at = size_t(position) * HALF + column % HALF;
        cos = load(cosine + at), sin = load(sine + at);
    }
    __device__ __forceinline__ Eight
    normed_and_rotated(Eight x, const float* weight, float epsilon) const {
        Eight scale = {1, 1, 1, 1, 1, 1, 1, 1}, out;
        if (weight) scale = load(weight + column);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) squares = fmaf(x.at[i], x.at[i], squares);
#pragma unroll
        for (int distance = 1; distance < CHUNKS; distance *= 2)
            squares += __shfl_xor_sync(WHOLE_WARP, squares, distance);
        const float inverse = 1.0f / sqrtf(squares / HEAD_SIZE + epsilon);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float mine = x.at[i] * (inverse * scale.at[i]),
                        partner = __shfl_xor_sync(WHOLE_WARP, mine, CHUNKS / 2);
            out.at[i] = rotated(mine, partner, cos.at[i], sin.at[i], column < HALF ? 1 : -1).x;
        }
        return out;
    }
};

// Writes what a block's warps have found, each for TOGETHER heads: the highest score, the sum of
// weights and that of weighted values; out = Σ 2^(top − highest) · sums / Σ 2^(top − highest) ·
// total, or without `out` a part of it. `first` is the first head's part.
template <int COUNT>
__device__ __forceinline__ void put_together(const float (&tops)[COUNT][TOGETHER],
    const float (&totals)[COUNT][TOGETHER], const float* sums, size_t first, int splits,
    ACTIVATION* out, float* parts, float2* shares) {
    for (int index = threadIdx.x; index < TOGETHER * HEAD_SIZE; index += COUNT * 32) {
        const int h = index / HEAD_SIZE, e = index % HEAD_SIZE;
        float highest = NEVER, sum = 0, weights = 0;
#pragma unroll
        for (int w = 0; w < COUNT; ++w) highest = fmaxf(highest, tops[w][h]);
#pragma unroll
        for (int w = 0; w < COUNT; ++w) {
            const float shrink = exp2f(tops[w][h] - highest);
            weights = fmaf(totals[w][h], shrink, weights);
            sum = fmaf(sums[(w * TOGETHER + h) * HEAD_SIZE + e], shrink, sum);
        }
        const size_t part = first + size_t(h) * splits;
        if (out) {
            out[part * HEAD_SIZE + e] = ACTIVATION(sum / weights);
        } else {
            parts[part * HEAD_SIZE + e] = sum;
            if (e == 0) shares[part] = make_float2(highest, weights);
        }
    }
}
