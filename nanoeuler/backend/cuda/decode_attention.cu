// Attention of new tokens, each a row, to the keys and values in the cache of their sequence, with
// grouped heads and the keys split among blocks (Flash-Decoding, Dao et al. 2023). TOKENS rows in
// turn belong to one sequence.
//
// Part p of a row takes those of the keys p · span to (p + 1) · span that are there, for TOGETHER
// query heads of one key/value head, which read them once. CHUNKS lanes share a key, and each such
// group of lanes has AHEAD keys on their way at a time; the softmax is carried along as in
// attention.cu, with the highest score so far. Keys of earlier tokens are fetched before the kernel
// in front has ended (overlap.cuh), those of the new tokens after it.
//
// Where heads have norms (QK_NORM), y = w · x / √(mean(x²) + ε) over a head, every block norms and
// then rotates the queries and new keys that it reads: less work than the start of another kernel.
// One block of each new key writes it to the cache, from where this kernel does not read it.
//
// attend   in: query (B, QUERY_HEADS, HEAD_SIZE), see slots.cuh, keys, values (B / TOKENS, S,
//              KV_HEADS, HEAD_SIZE) ACTIVATION, sequences of the cache `cache_batch` elements
//              apart; lengths (B / TOKENS) int: the slot of the first new token; a token sees the
//              slots up to its own; with QK_NORM cosine, sine (positions, HEAD_SIZE / 2) float, and
//              w of queries and of keys (HEAD_SIZE) float, or null for ones
//          out: out (B, HEADS, HEAD_SIZE) ACTIVATION when there is one part; or, without `out`, for
//              decode_layer.cu to put together: parts (B, HEADS, splits, HEAD_SIZE) float, sums of
//              values, and shares (B, HEADS, splits) float2: highest score (in powers of 2), sum of
//              weights; with QK_NORM the new tokens' keys, too
//          bytes: 2 · B · (length + 1) · KV_HEADS · HEAD_SIZE · activation
//              · HEADS / (KV_HEADS · TOGETHER), of which the L2 gives the repetitions
// fill_slots  in: packed (B, ·) ACTIVATION, rows `stride` elements apart: q, from KEY on k, from
//              VALUE on v; cosine, sine (positions, HEAD_SIZE / 2) float
//          out: query, rotated; k (rotated) and v in their slots of the cache; with QK_NORM q and k
//              as they are in query; with GPT2 nothing is rotated
//          bytes: 4 · B · (HEADS + 2 KV_HEADS) · HEAD_SIZE
//
// Compiled in: THREADS of a block, HEADS, KV_HEADS, HEAD_SIZE, KEY, VALUE, TOKENS, QK_NORM, GPT2,
// and TOGETHER, a divisor of HEADS / KV_HEADS.
#include "common.cuh"
#include "new_tokens.cuh"
#include "overlap.cuh"

constexpr int WARPS = THREADS / 32, GROUPS = THREADS / CHUNKS, AHEAD = 4;
static_assert(TOKENS + TOGETHER <= GROUPS, "a group takes a new key or a query");

extern "C" __global__ void __launch_bounds__(THREADS)
    attend(const ACTIVATION* query, ACTIVATION* keys, const ACTIVATION* values,
        long long cache_batch, const int* lengths, const float* cosine, const float* sine,
        const float* query_norm, const float* key_norm, float epsilon, int capacity, int span,
        float scale, ACTIVATION* out, float* parts, float2* shares) {
    __shared__ float tops[WARPS][TOGETHER], totals[WARPS][TOGETHER];
    __shared__ __align__(16) float warp_sums[WARPS][TOGETHER][HEAD_SIZE];
    __shared__ __align__(16) float own_queries[TOGETHER][HEAD_SIZE];  // with QK_NORM
    __shared__ __align__(16) ACTIVATION new_keys[TOKENS][HEAD_SIZE];  // the same
    const int split = blockIdx.x, first_head = blockIdx.y * TOGETHER, b = blockIdx.z,
              kv_head = first_head / (HEADS / KV_HEADS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / CHUNKS,
              column = lane % CHUNKS * WIDTH;
    const int length = lengths[b / TOKENS], old = min(length, capacity - 1),
              newest = min(slot_of(lengths, b), capacity - 1), begin = split * span,
              end = min(begin + span, newest + 1);
    keys += b / TOKENS * cache_batch + kv_head * HEAD_SIZE + column,
        values += b / TOKENS * cache_batch + kv_head * HEAD_SIZE + column;
    Raw<ACTIVATION> key[AHEAD], value[AHEAD];
    auto fetch = [&](int first, int from, int to) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int at = first + u * GROUPS + group;
            if (from <= at && at < to)
                key[u].fetch(QK_NORM && at >= length ? &new_keys[at - length][column]
                                                     : keys + size_t(at) * TOKEN),
                    value[u].fetch(values + size_t(at) * TOKEN);
        }
    };
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) key[u] = value[u] = {};
    let_next_start();
    fetch(begin, begin, min(end, old));
    // a group takes a new key, or a query; the groups that are left repeat the last one
    const bool is_key = group < TOKENS;
    const int head = min(group - TOKENS, TOGETHER - 1), slot = length + group;
    const Place place(cosine, sine, is_key ? min(slot, capacity - 1) : newest, column);
    wait_for_previous();
    if (begin >= end) return;
    if (QK_NORM) {
        const size_t index = is_key ? (b / TOKENS * TOKENS + group) * QUERY_HEADS + HEADS + kv_head
                                    : b * QUERY_HEADS + first_head + head;
        const Eight finished = place.normed_and_rotated(
            load(query + index * HEAD_SIZE + column), is_key ? key_norm : query_norm, epsilon);
        if (is_key) store(&new_keys[group][column], finished);
        else store(&own_queries[head][column], finished);
        if (group == b % TOKENS && begin <= slot && slot < end &&
            first_head % (HEADS / KV_HEADS) == 0)
            store(keys + size_t(slot) * TOKEN, finished);
        __syncthreads();
    }
    fetch(begin, old, end);
    Eight queries[TOGETHER], sums[TOGETHER];
    float top[TOGETHER], total[TOGETHER];
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) {
        queries[h] =
            QK_NORM ? load(&own_queries[h][column])
                    : load(query + (size_t(b) * HEADS + first_head + h) * HEAD_SIZE + column);
        sums[h] = {}, top[h] = NEVER, total[h] = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            queries[h].at[i] *= scale * LOG2E;
    }
    for (int first = begin; first < end; first += GROUPS * AHEAD) {
        if (first > begin) fetch(first, first, end);
        float scores[AHEAD][TOGETHER], highest[TOGETHER];
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h) highest[h] = top[h];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const Eight numbers = key[u].value();
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                float score = 0;
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    score = fmaf(queries[h].at[i], numbers.at[i], score);
#pragma unroll
                for (int distance = 1; distance < CHUNKS; distance *= 2)
                    score += __shfl_xor_sync(WHOLE_WARP, score, distance);
                scores[u][h] = first + u * GROUPS + group < end ? score : NEVER;
                highest[h] = fmaxf(highest[h], scores[u][h]);
            }
        }
#pragma unroll
        for (int h = 0; h < TOGETHER; ++h) {
            const float shrink = exp2f(top[h] - highest[h]);
            top[h] = highest[h], total[h] *= shrink;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sums[h].at[i] *= shrink;
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const Eight numbers = value[u].value();
            const bool seen = first + u * GROUPS + group < end;
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                const float weight = seen ? exp2f(scores[u][h] - top[h]) : 0.0f;
                total[h] += weight;
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    sums[h].at[i] = fmaf(weight, numbers.at[i], sums[h].at[i]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < TOGETHER; ++h) {  // of the warp's groups
        float highest = top[h];
#pragma unroll
        for (int distance = CHUNKS; distance < 32; distance *= 2)
            highest = fmaxf(highest, __shfl_xor_sync(WHOLE_WARP, highest, distance));
        const float shrink = exp2f(top[h] - highest);
        total[h] *= shrink;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sums[h].at[i] *= shrink;
#pragma unroll
        for (int distance = CHUNKS; distance < 32; distance *= 2) {
            total[h] += __shfl_xor_sync(WHOLE_WARP, total[h], distance);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                sums[h].at[i] += __shfl_xor_sync(WHOLE_WARP, sums[h].at[i], distance);
        }
        if (lane < CHUNKS) store(&warp_sums[warp][h][column], sums[h]);
        if (lane == 0) tops[warp][h] = highest, totals[warp][h] = total[h];
    }
    __syncthreads();
    const size_t part = (size_t(b) * HEADS + first_head) * gridDim.x + split;
    put_together(tops, totals, warp_sums[0][0], part, gridDim.x, out, parts, shares);
}

// Threads of a head: each rotates 8 elements of the first half with 8 of the second.
constexpr int PAIRS = HALF / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
    fill_slots(const ACTIVATION* packed, long long stride, const int* lengths, const float* cosine,
        const float* sine, ACTIVATION* query, ACTIVATION* keys, ACTIVATION* values,
        long long cache_batch, int capacity, int rows) {
    const unsigned index = blockIdx.x * THREADS + threadIdx.x,
                   b = index / ((HEADS + 2 * KV_HEADS) * PAIRS);
    if (b >= rows) return;
    const int head = index / PAIRS % (HEADS + 2 * KV_HEADS);
    const int column = index % PAIRS * WIDTH, at = slot_of(lengths, b);
    if (at >= capacity) return;
    const ACTIVATION* from = packed + b * stride + column;
    ACTIVATION* to = query + (size_t(b) * QUERY_HEADS + head) * HEAD_SIZE + column;
    const bool is_query = head < HEADS, is_key = !is_query && head < HEADS + KV_HEADS;
    if (is_query) {
        from += head * HEAD_SIZE;
    } else {
        const int offset = (head - (is_key ? HEADS : HEADS + KV_HEADS)) * HEAD_SIZE;
        from += (is_key ? KEY : VALUE) + offset;
        if (head >= QUERY_HEADS)
            to = (is_key ? keys : values) + b / TOKENS * cache_batch + size_t(at) * TOKEN +
                 offset + column;
    }
    if (QK_NORM || GPT2 || !(is_query || is_key)) {
        store(to, load(from)), store(to + HALF, load(from + HALF));
        return;
    }
    const Eight a = load(from), b2 = load(from + HALF);
    const Eight cos = load(cosine + size_t(at) * HALF + column);
    const Eight sin = load(sine + size_t(at) * HALF + column);
    Eight first, second;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float2 pair = rotated(a.at[i], b2.at[i], cos.at[i], sin.at[i]);
        first.at[i] = pair.x, second.at[i] = pair.y;
    }
    store(to, first), store(to + HALF, second);
}
