// Causal grouped-query attention without tiles, forward and backward: of heads that attention.cu
// has no tiles for, and of scores with a soft cap. It is slow, and short; the specification is
// backend/reference.py.
//
//     out = softmax(cap(q kᵀ / √E)) v        lse = log Σ exp(score)
//
// Query i is at position offset_b + i and sees the keys starts_bi … offset_b + i.
//
// in:  query (B, T, H, E), key and value (B, S, G, E), each with strides of its own (in elements)
//      for batch, token and head, rows contiguous on 16-byte borders; starts (B, T) int, never
//      falling along a row; offset (B) int. Queries whose position lies beyond the last key get
//      results that mean nothing. cap: 0 for none. Backward also dout (B, T, H, E), out and lse;
//      there S = T
// out: out (B, T, H, E) and lse (B, H, T) float; dquery, dkey, dvalue; products (B, H, T) float,
//      Σ dout · out, is scratch memory between the backward kernels
// bytes: forward q + out + 2 k of each head, of which the caches give all but the first reading
//
// A warp has one query (or, for dk and dv, one key of a key/value head), a lane 8 of its elements,
// and goes through the rows that it sees, AHEAD at a time. Sums across a warp have a fixed order:
// equal inputs give equal bits.
//
// Compiled in: HEAD_SIZE = E, at most 256; AHEAD; THREADS of a block.
#include "common.cuh"
#include "soft_cap.cuh"

static_assert(HEAD_SIZE % WIDTH == 0 && HEAD_SIZE <= 32 * WIDTH, "a warp holds a row");
#define NEVER __int_as_float(0xff800000)  // −∞
#define TENSOR(name) ACTIVATION *name, long long name##_batch, int name##_token, int name##_head
#define CONST_TENSOR(name) const TENSOR(name)
#define AT(name, b, t, h) name + b * name##_batch + (long long)(t)*name##_token + h * name##_head

constexpr int WARPS = THREADS / 32;

// The lane's elements of a row; lanes beyond its end have zeros.
__device__ __forceinline__ Eight load_row(const ACTIVATION* row) {
    const int column = threadIdx.x % 32 * WIDTH;
    if (column < HEAD_SIZE) return load(row + column);
    return {};
}

__device__ __forceinline__ void store_row(ACTIVATION* row, const Eight& value) {
    const int column = threadIdx.x % 32 * WIDTH;
    if (column < HEAD_SIZE) store(row + column, value);
}

__device__ __forceinline__ float dot(const Eight& a, const Eight& b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum = fmaf(a.at[i], b.at[i], sum);
    return warp_sum(sum);
}

__device__ __forceinline__ void add(Eight& total, float factor, const Eight& value) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) total.at[i] = fmaf(factor, value.at[i], total.at[i]);
}

__device__ __forceinline__ Capped capped(float score, float cap) {
    if (cap > 0) return soft_capped(score, cap);
    return {score, 1};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    plain_attention(CONST_TENSOR(query), CONST_TENSOR(key), CONST_TENSOR(value), const int* starts,
        const int* offsets, TENSOR(out), float* lse, int T, int S, int heads, int kv_heads,
        float scale, float cap) {
    const int t = blockIdx.x * WARPS + threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z;
    if (t >= T) return;
    const int g = h / (heads / kv_heads), begin = min(starts[b * T + t], S - 1),
              end = min(offsets[b] + t + 1, S);
    const Eight q = load_row(AT(query, b, t, h));
    Eight sums = {};
    float top = NEVER, total = 0;
    for (int first = begin; first < end; first += AHEAD) {
        float scores[AHEAD], highest = top;
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int at = min(first + j, end - 1);
            const float score = capped(scale * dot(q, load_row(AT(key, b, at, g))), cap).value;
            scores[j] = first + j < end ? score : NEVER;
            highest = fmaxf(highest, scores[j]);
        }
        // scores that are NaN or −∞ leave `highest` at −∞, of which no difference is taken
        const float shift = highest == NEVER ? 0 : highest, shrink = expf(top - shift);
        total *= shrink, top = highest;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sums.at[i] *= shrink;
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const float weight = expf(scores[j] - shift);
            total += weight;
            add(sums, weight, load_row(AT(value, b, min(first + j, end - 1), g)));
        }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sums.at[i] /= total;
    store_row(AT(out, b, t, h), sums);
    if (threadIdx.x % 32 == 0) lse[((long long)b * heads + h) * T + t] = top + logf(total);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    plain_attention_dquery(CONST_TENSOR(dout), CONST_TENSOR(query), CONST_TENSOR(key),
        CONST_TENSOR(value), const int* starts, CONST_TENSOR(out), const float* lse,
        float* products, TENSOR(dquery), int T, int heads, int kv_heads, float scale, float cap) {
    const int t = blockIdx.x * WARPS + threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z;
    if (t >= T) return;
    const int g = h / (heads / kv_heads);
    const long long index = ((long long)b * heads + h) * T + t;
    const Eight q = load_row(AT(query, b, t, h)), dy = load_row(AT(dout, b, t, h));
    const float product = dot(dy, load_row(AT(out, b, t, h))), row_lse = lse[index];
    Eight dq = {};
#pragma unroll 2
    for (int at = starts[b * T + t]; at <= t; ++at) {
        const Eight k = load_row(AT(key, b, at, g));
        const Capped score = capped(scale * dot(q, k), cap);
        const float slope = dot(dy, load_row(AT(value, b, at, g))) - product;
        add(dq, expf(score.value - row_lse) * slope * score.slope * scale, k);
    }
    store_row(AT(dquery, b, t, h), dq);
    if (threadIdx.x % 32 == 0) products[index] = product;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    plain_attention_dkey(CONST_TENSOR(dout), CONST_TENSOR(query), CONST_TENSOR(key),
        CONST_TENSOR(value), const int* starts, const float* lse, const float* products,
        TENSOR(dkey), TENSOR(dvalue), int T, int heads, int kv_heads, float scale, float cap) {
    const int at = blockIdx.x * WARPS + threadIdx.x / 32, g = blockIdx.y, b = blockIdx.z;
    if (at >= T) return;
    const Eight k = load_row(AT(key, b, at, g)), v = load_row(AT(value, b, at, g));
    Eight dk = {}, dv = {};
    int end = at;  // queries that see this key are neighbours, as starts never fall
    while (end < T && starts[b * T + end] <= at) ++end;
    for (int h = g * (heads / kv_heads); h < (g + 1) * (heads / kv_heads); ++h) {
        const long long first = ((long long)b * heads + h) * T;
#pragma unroll 2
        for (int t = at; t < end; ++t) {
            const Eight q = load_row(AT(query, b, t, h)), dy = load_row(AT(dout, b, t, h));
            const Capped score = capped(scale * dot(q, k), cap);
            const float probability = expf(score.value - lse[first + t]);
            const float slope = dot(dy, v) - products[first + t];
            add(dv, probability, dy);
            add(dk, probability * slope * score.slope * scale, q);
        }
    }
    store_row(AT(dkey, b, at, g), dk);
    store_row(AT(dvalue, b, at, g), dv);
}
