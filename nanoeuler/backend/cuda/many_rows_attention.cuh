// Attention of 5 to 64 new tokens, on matrix units. decode_attention.cu takes other numbers.
//
// A warp takes every ATTEND_WARPS-th tile of 16 keys. Scores are K qᵀ, sums of values Vᵀ p; query
// heads are columns. A warp copies its tiles of keys and values to shared memory, ATTEND_STAGES of
// them at a time, and carries its softmax along; what the warps have found is put together at the
// end. Keys of earlier tokens are fetched before the kernel in front has ended (overlap.cuh), those
// of the new tokens after it.
//
// Arguments and `out`, `parts` and `shares`: see decode_attention.cu. Queries and probabilities are
// rounded to bfloat16, as in attention.cu.
//
// Shared memory: the tiles of all warps, which later give way to their sums.
//
// Compiled in: those of many_rows.cuh and new_tokens.cuh, ATTEND_WARPS of a block, ATTEND_STAGES,
// ATTEND_BYTES (shared memory).
#include "new_tokens.cuh"

constexpr int ATTENDING = ATTEND_WARPS * 32, GROUPS = ATTENDING / CHUNKS;  // ATTENDING threads
constexpr int TILE = 16, TILE_STEP = ATTEND_WARPS * TILE;  // keys at a time: a warp's, a block's
constexpr int TILE_BYTES = TILE * HEAD_SIZE * 2, STAGE_BYTES = 2 * TILE_BYTES;
constexpr int BLOCKS = HEAD_SIZE / 16;  // steps of mma along a head
static_assert(TOKENS + TOGETHER <= GROUPS && TOGETHER <= 8, "a group takes a new key or a query");
static_assert(ATTEND_WARPS * ATTEND_STAGES * STAGE_BYTES == ATTEND_BYTES, "what a launch asks for");

// Offset of 16 bytes in a tile, swizzled so that the same chunk of eight keys lies in all banks
__device__ __forceinline__ int chunk_at(int key, int chunk) {
    constexpr int MASK = CHUNKS < 8 ? CHUNKS - 1 : 7, KEYS = CHUNKS < 8 ? 8 / CHUNKS : 1;
    return (key * CHUNKS + (chunk ^ (key / KEYS & MASK))) * 16;
}

__device__ __forceinline__ void mma(float (&x)[4], unsigned a0, unsigned a1, unsigned a2,
    unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned transposed(unsigned word) {
    unsigned result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
}

extern "C" __global__ void __launch_bounds__(ATTENDING, 512 / ATTENDING)
    attend(const ACTIVATION* query, ACTIVATION* keys, const ACTIVATION* values,
        long long cache_batch, const int* lengths, const float* cosine, const float* sine,
        const float* query_norm, const float* key_norm, float epsilon, int capacity, int span,
        float scale, ACTIVATION* out, float* parts, float2* shares) {
    __shared__ float tops[ATTEND_WARPS][TOGETHER], totals[ATTEND_WARPS][TOGETHER];
    __shared__ __align__(16) ACTIVATION own_queries[TOGETHER][HEAD_SIZE];
    __shared__ __align__(16) ACTIVATION new_keys[TOKENS][HEAD_SIZE];  // with QK_NORM
    const int split = blockIdx.x, first_head = blockIdx.y * TOGETHER, b = blockIdx.z,
              kv_head = first_head / (HEADS / KV_HEADS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int length = lengths[b / TOKENS], old = min(length, capacity - 1),
              newest = min(slot_of(lengths, b), capacity - 1), begin = split * span,
              end = min(begin + span, newest + 1), known = min(end, old);
    keys += b / TOKENS * cache_batch + kv_head * HEAD_SIZE;
    values += b / TOKENS * cache_batch + kv_head * HEAD_SIZE;
    const int warp_first = begin + warp * TILE, ring = warp * ATTEND_STAGES * STAGE_BYTES;
    // Those keys and values of a tile that lie in slots `from` to `to`; zeros from `end` on
    auto copy = [&](int stage, int first, int from, int to) {
#pragma unroll
        for (int i = lane; i < TILE * CHUNKS; i += 32) {
            const int key = i / CHUNKS, chunk = i % CHUNKS, at = first + key,
                      place = ring + stage * STAGE_BYTES + chunk_at(key, chunk);
            if (at < from || to <= at) continue;
            const bool present = at < end;
            const size_t source = present ? size_t(at) * TOKEN + chunk * WIDTH : 0;
            if (QK_NORM && present && at >= length)
                *reinterpret_cast<uint4*>(memory + place) =
                    *reinterpret_cast<const uint4*>(&new_keys[at - length][chunk * WIDTH]);
            else copy_16(place, keys + source, present);
            copy_16(place + TILE_BYTES, values + source, present);
        }
    };
    let_next_start();
#pragma unroll
    for (int stage = 0; stage < ATTEND_STAGES; ++stage)
        copy(stage, warp_first + stage * TILE_STEP, begin, known);
    // a group of lanes takes a new key, or a query; the groups that are left repeat the last one
    const int group = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * WIDTH;
    const bool is_key = group < TOKENS;
    const int head = min(group - TOKENS, TOGETHER - 1), slot = length + group;
    const Place place(cosine, sine, is_key ? min(slot, capacity - 1) : newest, column);
    wait_for_previous();
    if (begin >= end) return;
    if (QK_NORM || !is_key) {
        const size_t index = is_key ? (b / TOKENS * TOKENS + group) * QUERY_HEADS + HEADS + kv_head
                                    : b * QUERY_HEADS + first_head + head;
        Eight x = load(query + index * HEAD_SIZE + column);
        if (QK_NORM) x = place.normed_and_rotated(x, is_key ? key_norm : query_norm, epsilon);
        store(is_key ? &new_keys[group][column] : &own_queries[head][column], x);
        if (is_key && group == b % TOKENS && begin <= slot && slot < end &&
            first_head % (HEADS / KV_HEADS) == 0)
            store(keys + size_t(slot) * TOKEN + column, x);
    }
    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < ATTEND_STAGES; ++stage) {
        const int first = warp_first + stage * TILE_STEP;
        if (first < end && known < first + TILE) copy(stage, first, known, first + TILE);
        commit_copies();
    }
    unsigned queries[BLOCKS][2];  // columns lane / 4: heads, those past the last one repeat it
#pragma unroll
    for (int k = 0; k < BLOCKS; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            queries[k][half] = *reinterpret_cast<const unsigned*>(
                &own_queries[min(lane / 4, TOGETHER - 1)][k * 16 + half * 8 + lane % 4 * 2]);
    // of heads 2 (lane % 4) and the next; of `sums` rows lane / 4 and lane / 4 + 8 of 16 elements
    float top[2] = {NEVER, NEVER}, total[2] = {}, sums[BLOCKS][4] = {};
    scale *= LOG2E;
    int stage = 0;
    for (int first = warp_first; first < end; first += TILE_STEP) {
        asm volatile("cp.async.wait_group %0;" ::"n"(ATTEND_STAGES - 1) : "memory");
        __syncwarp();
        const int tile = ring + stage * STAGE_BYTES;
        float scores[4] = {};
#pragma unroll
        for (int k = 0; k < BLOCKS; ++k) {
            unsigned a[4];
            load_matrices(a, tile + chunk_at(lane % 16, 2 * k + lane / 16));
            mma(scores, a[0], a[1], a[2], a[3], queries[k][0], queries[k][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            scores[i] = first + lane / 4 + i / 2 * 8 < end ? scores[i] * scale : NEVER;
        float shrink[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = fmaxf(scores[h], scores[2 + h]);
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                highest = fmaxf(highest, __shfl_xor_sync(WHOLE_WARP, highest, distance));
            highest = fmaxf(highest, top[h]);
            shrink[h] = exp2f(top[h] - highest), top[h] = highest;
            scores[h] = exp2f(scores[h] - highest), scores[2 + h] = exp2f(scores[2 + h] - highest);
            total[h] = fmaf(total[h], shrink[h], scores[h] + scores[2 + h]);
        }
        const unsigned low = transposed(pack_bf16(scores[0], scores[1])),
                       high = transposed(pack_bf16(scores[2], scores[3]));
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][i] *= shrink[i % 2];
            unsigned a[4];
            const int key = lane / 16 * 8 + lane % 8, chunk = 2 * m + lane / 8 % 2;
            load_matrices_transposed(a, tile + TILE_BYTES + chunk_at(key, chunk));
            mma(sums[m], a[0], a[1], a[2], a[3], low, high);
        }
        __syncwarp();
        const int next = first + ATTEND_STAGES * TILE_STEP;
        if (next < end) copy(stage, next, begin, next + TILE);
        commit_copies();
        stage = stage + 1 == ATTEND_STAGES ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();  // sums take the place of the tiles
    float* warp_sums = reinterpret_cast<float*>(memory);  // (ATTEND_WARPS, TOGETHER, HEAD_SIZE)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int head = lane % 4 * 2 + h;
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            total[h] += __shfl_xor_sync(WHOLE_WARP, total[h], distance);
        if (head >= TOGETHER) continue;
        if (lane < 4) tops[warp][head] = top[h], totals[warp][head] = total[h];
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                warp_sums[(warp * TOGETHER + head) * HEAD_SIZE + m * 16 + half * 8 + lane / 4] =
                    sums[m][half * 2 + h];
    }
    __syncthreads();
    const size_t part = (size_t(b) * HEADS + first_head) * gridDim.x + split;
    put_together(tops, totals, warp_sums, part, gridDim.x, out, parts, shares);
}
