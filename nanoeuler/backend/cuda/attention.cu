// Causal grouped-query attention in tiles (FlashAttention-2, Dao 2023), forward and backward; the
// specification is backend/reference.py.
//
//     out = softmax(q kᵀ / √E) v        lse = log Σ exp(score)
//
// Query i is at position offset_b + i and sees the keys starts_bi … offset_b + i.
//
// in:  query (B, T, H, E), key and value (B, S, G, E), each with strides of its own (in elements)
//      for batch, token and head, rows contiguous on 16-byte borders; starts (B, T) int32, never
//      falling along a row; offset (B) int32. Queries whose position offset + i lies beyond the
//      last key (the padding of short rows) get results that mean nothing. Backward also dout (B,
//      T, H, E), out and lse; there S = T; and positions (B, T) int with the tables of rope.cu, or
//      none: with them dquery and dkey are the gradients of query and key before they were rotated.
// out: out (B, T, H, E) and lse (B, H, T) float32; dquery, dkey, dvalue; statistics (B, H, T, 2)
//      float32 is scratch memory between the backward kernels
// bytes: forward q + out + 2 k; backward at least twice q, dout and k, v, once out and the
//      gradients: what is read again comes from the cache
//
// A block holds a tile of queries (or, for dk and dv, of keys) and streams the other side past it,
// two tiles in shared memory: one arrives while the other is used. Tiles that nothing in the block
// sees are never fetched. There is no (T, T) array: forward keeps a running maximum and sum per
// row, backward recomputes the probabilities from lse. dq has a kernel of its own. That costs 7
// products of tiles instead of 5 (in float32 9: it looks at the keys twice) and needs no sum across
// blocks: no atomics, the same bits every time.
//
// With FP8, out and the gradients are written once more as e4m3, as fp8.cuh says and with the same
// strides: out to `e4m3`, dquery, dkey and dvalue by one slot for all three.
//
// Compiled with -D, beside those of matrix_units.cuh:
//     FP8        0 or 1
//     HEADS      query heads of one key/value head that a block takes together; it divides H / G
//     POSITIONS  query positions per block: it has HEADS · POSITIONS rows, 16 per warp
//     KEYS       keys per tile in the forward pass
//     KEY_GROUPS groups of warps that take tiles of keys in turn there: where there are few
//                blocks, more shorten the way of each
//     GRADIENT_HEADS, GRADIENT_POSITIONS, GRADIENT_KEYS      the same for dq
//     HELD_KEYS, STREAMED_QUERIES                            keys per block and queries per tile,
//                                                            for dk and dv
//     FORWARD_, DQUERY_, DKEY_BLOCKS                         blocks that should fit on a
//                                                            multiprocessor (bounds registers)
//     FORWARD_, DQUERY_, DKEY_, DECODE_THREADS               threads of a block
//     FORWARD_, DQUERY_, DKEY_BYTES                          dynamic shared memory of a block
#include "key_groups.cuh"
#include "overlap.cuh"

// ---- forward

constexpr int QUERIES = HEADS * POSITIONS;
static_assert(FORWARD_THREADS == QUERIES * 2 * KEY_GROUPS, "a warp owns 16 rows");

extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, FORWARD_BLOCKS)
    attention_forward(CONST_TENSOR(query), CONST_TENSOR(key), CONST_TENSOR(value),
        const int* __restrict__ starts, const int* __restrict__ offsets, TENSOR(out),
        float* __restrict__ lse, int T, int S, int heads, int kv_heads, float scale,
        unsigned char* e4m3, Slot* slot) {
    constexpr int KEY_TILE = KEYS * ROW_BYTES, KEY_TILES = QUERIES * ROW_BYTES,
                  STAGE = KEY_GROUPS * KEY_TILE, VALUE_TILES = KEY_TILES + 2 * STAGE,
                  STEP = KEY_GROUPS * KEYS;
    static_assert(VALUE_TILES + 2 * STAGE == FORWARD_BYTES, "two tiles of keys and of values");
    let_next_start();
    int batch = blockIdx.y / (heads / HEADS);
    int group = KEY_GROUPS == 1 ? 0 : threadIdx.x / GROUP_THREADS;
    int warp = threadIdx.x / 32 - group * (QUERIES / 16);
    Queries<HEADS, POSITIONS> q(starts, offsets[batch], T, S, heads, warp);
    int kv_head = q.head / (heads / kv_heads), lane = threadIdx.x % 32;
    int own = group * KEY_TILE;  // of the tiles of a step
    key += batch * key_batch + kv_head * key_head,
        value += batch * value_batch + kv_head * value_head;

    TileCopy<QUERIES, POSITIONS, FORWARD_THREADS> copy_query(
        query + batch * query_batch + q.head * query_head, query_token);
    using GroupCopy = TileCopy<KEYS, KEYS, GROUP_THREADS>;
    unsigned thread = threadIdx.x - group * GROUP_THREADS;
    GroupCopy copy_key(key, key_token, thread), copy_value(value, value_token, thread);
    auto fetch = [&](auto& copy, int tiles, int step) {
        int first = step * STEP + group * KEYS;
        copy(tiles + step % 2 * STAGE + own, first, q.keys_end - first);
    };
    auto fetch_key = [&](int step) { fetch(copy_key, KEY_TILES, step); };
    auto fetch_value = [&](int step) { fetch(copy_value, VALUE_TILES, step); };

    float sums[HEAD_BLOCKS][4], scores[KEYS / 8][4], top[2] = {NEVER, NEVER}, total[2] = {0, 0},
                                                     shrink[2], factor = scale * BASE;
    // Scores become probabilities, but for the row's sum. What was summed before has to shrink, as
    // the highest score has grown.
    auto softmax = [&](int step) {
        int first_key = step * STEP + group * KEYS;
        if (!q.sees_all(first_key, KEYS)) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!q.sees_key(i / 2, first_key + 8 * j + lane % 4 * 2 + i % 2))
                        scores[j][i] = NEVER;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = NEVER, sum = 0;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
                highest = fmaxf(highest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
            highest = fmaxf(top[half], max_of_four_lanes(highest));
            float shift = highest == NEVER ? 0 : highest * factor;
            shrink[half] = power(top[half] * factor - shift), top[half] = highest;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    sum += scores[j][i] = power(fmaf(scores[j][i], factor, -shift));
            }
            total[half] = total[half] * shrink[half] + sum;
        }
    };

    // From the newest keys back: the first tile to fetch then does not depend on where a document
    // starts, which is still on its way. A tile's scores are multiplied together with the
    // probabilities and values of the tile before it, so that the next softmax overlaps with the
    // latter.
    int step = (q.keys_end - 1) / STEP, last = q.keys_begin / STEP;
    int tiles = (q.keys_end - step * STEP + KEYS - 1) / KEYS;  // of the first step
    int used = step > last ? KEY_GROUPS : min(KEY_GROUPS, tiles);
    if (KEY_GROUPS > 1 && step > last && step * STEP + group * KEYS >= q.keys_end)
        step--;  // this group has no keys in the first one
    wait_for_previous();
    copy_query(0, q.first, q.count, query_head);
    fetch_key(step);
    commit_copies();
    if (step > last) fetch_key(step - 1);
    fetch_value(step);
    commit_copies();
    await_copies<1>();  // queries are copied by all groups
    Rows<QUERIES> rows;
    rows.load(0, q.row);
    clear(sums);
    pin(scores);
    begin_products();
    multiply_transposed<KEYS>(scores, rows, KEY_TILES + step % 2 * STAGE + own);
    commit_products();
    await_products<0>();
    pin(scores);
    softmax(step);
    Weights<KEYS> probabilities;
    probabilities.round(scores);
    for (; step > last; step--) {
        await_copies_of<0>(group);
        if (step - 1 > last) fetch_key(step - 2);
        fetch_value(step - 1);
        commit_copies();
        pin(scores), pin(sums);
        begin_products();
        multiply_transposed<KEYS>(scores, rows, KEY_TILES + (step - 1) % 2 * STAGE + own);
        commit_products();
        multiply_add<KEYS>(sums, probabilities, VALUE_TILES + step % 2 * STAGE + own);
        commit_products();
        await_products<1>();
        pin(scores);
        softmax(step - 1);
        await_products<0>();
        pin(sums);
        if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {  // mostly in the first tiles
#pragma unroll
            for (int j = 0; j < HEAD_BLOCKS; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[j][i] *= shrink[i / 2];
            }
        }
        probabilities.hold();
        probabilities.round(scores);
    }
    await_copies_of<0>(group);
    pin(sums);
    begin_products();
    multiply_add<KEYS>(sums, probabilities, VALUE_TILES + last % 2 * STAGE + own);
    commit_products();
    await_products<0>();
    pin(sums);

    float share[SHARE][4];
    if constexpr (KEY_GROUPS > 1)
        put_together(share, sums, top, total, factor, KEY_TILES, used);
    int head = q.head + q.head_in_block, left = q.count - q.query;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sum_of_four_lanes(total[half]);
        inverse[half] = sum > 0 ? 1 / sum : 0;
        int i = lane / 4 + 8 * half;
        if (group == 0 && lane % 4 == 0 && i < left)
            lse[((long long)batch * heads + head) * T + q.first + q.query + i] =
                (top[half] * factor + logarithm(sum)) / BASE;
    }
    long long at =
        batch * out_batch + (long long)(q.first + q.query) * out_token + head * out_head;
    if constexpr (KEY_GROUPS > 1) {
        store_share(share, inverse, out + at + group * SHARE * 8, out_token, left);
    } else {
        __syncthreads();  // the tile of queries is not read any more
        store_rows<QUERIES>(sums, inverse, 0, q.row, out, at, out_token, left, e4m3, slot);
    }
}

// ---- backward:  p = exp(score − lse),  delta = Σ dout · out,  ds = p · (dout vᵀ − delta)

constexpr int GRADIENT_QUERIES = GRADIENT_HEADS * GRADIENT_POSITIONS;
static_assert(DQUERY_THREADS == GRADIENT_QUERIES * 2, "a warp owns 16 rows");

// dq = ds k / √E; leaves (lse · BASE, delta) of each row behind for the other kernel.
extern "C" __global__ void __launch_bounds__(DQUERY_THREADS, DQUERY_BLOCKS)
    attention_dquery(CONST_TENSOR(dout), CONST_TENSOR(query), CONST_TENSOR(key),
        CONST_TENSOR(value), const int* __restrict__ starts, CONST_TENSOR(out),
        const float* __restrict__ lse, float2* __restrict__ statistics, TENSOR(dquery), int T,
        int heads, int kv_heads, float scale, const int* positions, const float* cosine,
        const float* sine, unsigned char* e4m3, Slot* slot) {
    constexpr int ROW_TILE = GRADIENT_QUERIES * ROW_BYTES, KEY_TILE = GRADIENT_KEYS * ROW_BYTES;
    constexpr int KEY_TILES = 2 * ROW_TILE, VALUE_TILES = KEY_TILES + 2 * KEY_TILE;
    static_assert(VALUE_TILES + 2 * KEY_TILE == DQUERY_BYTES, "two tiles of keys and of values");
    Queries<GRADIENT_HEADS, GRADIENT_POSITIONS> q(starts, 0, T, T, heads, threadIdx.x / 32);
    int batch = q.batch, kv_head = q.head / (heads / kv_heads), lane = threadIdx.x % 32;
    key += batch * key_batch + kv_head * key_head,
        value += batch * value_batch + kv_head * value_head;

    using CopyQueries = TileCopy<GRADIENT_QUERIES, GRADIENT_POSITIONS, DQUERY_THREADS>;
    CopyQueries(query + batch * query_batch + q.head * query_head, query_token)(
        0, q.first, q.count, query_head);
    CopyQueries(dout + batch * dout_batch + q.head * dout_head, dout_token)(
        ROW_TILE, q.first, q.count, dout_head);
    commit_copies();
    TileCopy<GRADIENT_KEYS, GRADIENT_KEYS, DQUERY_THREADS> copy_key(key, key_token),
        copy_value(value, value_token);
    auto fetch = [&](int tile, int stage) {
        int first = tile * GRADIENT_KEYS, count = q.keys_end - first;
        copy_key(KEY_TILES + stage * KEY_TILE, first, count);
        copy_value(VALUE_TILES + stage * KEY_TILE, first, count);
        commit_copies();
    };
    int tile = (q.keys_end - 1) / GRADIENT_KEYS, last = q.keys_begin / GRADIENT_KEYS;
    fetch(tile, tile % 2);

    int head = q.head + q.head_in_block, left = q.count - q.query;
    float row_lse[2], row_delta[2];
    {
        int i = lane / 2;  // two lanes take a row, and its chunks alternately
        float sum = 0;
        if (i < left) {
            const element* row_out = out + batch * out_batch +
                                     (long long)(q.first + q.query + i) * out_token +
                                     head * out_head + lane % 2 * PER_CHUNK;
            const element* row_dout = dout + batch * dout_batch +
                                      (long long)(q.first + q.query + i) * dout_token +
                                      head * dout_head + lane % 2 * PER_CHUNK;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
                float a[PER_CHUNK], b[PER_CHUNK];
                unpack(*reinterpret_cast<const uint4*>(row_out + chunk * PER_CHUNK), a);
                unpack(*reinterpret_cast<const uint4*>(row_dout + chunk * PER_CHUNK), b);
#pragma unroll
                for (int j = 0; j < PER_CHUNK; j++) sum = fmaf(a[j], b[j], sum);
            }
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        float scaled_lse =
            i < left ? lse[((long long)batch * heads + head) * T + q.first + q.query + i] * BASE
                     : 0;
        if (i < left && lane % 2 == 0)
            statistics[((long long)batch * heads + head) * T + q.first + q.query + i] =
                make_float2(scaled_lse, sum);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            row_lse[half] = __shfl_sync(~0u, scaled_lse, 2 * (lane / 4 + 8 * half));
            row_delta[half] = __shfl_sync(~0u, sum, 2 * (lane / 4 + 8 * half));
        }
    }
    await_copies<1>();
    Rows<GRADIENT_QUERIES> rows_query, rows_dout;
    rows_query.load(0, q.row), rows_dout.load(ROW_TILE, q.row);

    float gradient[HEAD_BLOCKS][4], factor = scale * BASE;
    auto differentiate = [&](float (&scores)[GRADIENT_KEYS / 8][4],
                             float (&dscores)[GRADIENT_KEYS / 8][4], int first_key, int stage) {
        pin(scores), pin(dscores);
        begin_products();
        multiply_transposed<GRADIENT_KEYS>(scores, rows_query, KEY_TILES + stage * KEY_TILE);
        commit_products();
        multiply_transposed<GRADIENT_KEYS>(dscores, rows_dout, VALUE_TILES + stage * KEY_TILE);
        commit_products();
        await_products<1>();
        pin(scores);
#pragma unroll
        for (int j = 0; j < GRADIENT_KEYS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[j][i] = power(fmaf(scores[j][i], factor, -row_lse[i / 2]));
        }
        if (!q.sees_all(first_key, GRADIENT_KEYS)) {
#pragma unroll
            for (int j = 0; j < GRADIENT_KEYS / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!q.sees_key(i / 2, first_key + 8 * j + lane % 4 * 2 + i % 2))
                        scores[j][i] = 0;
            }
        }
        await_products<0>();
        pin(dscores);
#pragma unroll
        for (int j = 0; j < GRADIENT_KEYS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                dscores[j][i] = scores[j][i] * (dscores[j][i] - row_delta[i / 2]);
        }
    };
    if constexpr (UNIT == FFMA) {
        // Σ ds is zero but for rounding. An error of delta moves dq by that many mean keys, and
        // keys have much in common: a second pass measures it.
        float rest[2] = {0, 0};
        for (int t = tile; t >= last; t--) {
            await_copies<0>();
            if (t > last) fetch(t - 1, 1 - t % 2);
            if (!q.sees(t * GRADIENT_KEYS, GRADIENT_KEYS)) continue;
            float scores[GRADIENT_KEYS / 8][4], dscores[GRADIENT_KEYS / 8][4];
            differentiate(scores, dscores, t * GRADIENT_KEYS, t % 2);
#pragma unroll
            for (int j = 0; j < GRADIENT_KEYS / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) rest[i / 2] += dscores[j][i];
            }
        }
        __syncthreads();  // the last tile is not read any more
        fetch(tile, tile % 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = lane / 4 + 8 * half;
            row_delta[half] += sum_of_four_lanes(rest[half]);
            if (lane % 4 == 0 && i < left)
                statistics[((long long)batch * heads + head) * T + q.first + q.query + i].y =
                    row_delta[half];
        }
    }

    clear(gradient);
    for (; tile >= last; tile--) {
        int stage = tile % 2, first_key = tile * GRADIENT_KEYS;
        await_copies<0>();
        if (tile > last) fetch(tile - 1, 1 - stage);
        if (!q.sees(first_key, GRADIENT_KEYS)) continue;

        float scores[GRADIENT_KEYS / 8][4], dscores[GRADIENT_KEYS / 8][4];
        differentiate(scores, dscores, first_key, stage);
        Weights<GRADIENT_KEYS> weights;
        weights.round(dscores);
        pin(gradient);
        begin_products();
        multiply_add<GRADIENT_KEYS>(gradient, weights, KEY_TILES + stage * KEY_TILE);
        commit_products();
        await_products<0>();
        pin(gradient);
    }
    __syncthreads();  // the tile of queries is not read any more
    if (positions) {
        int block;  // `batch` once more: the loop has no register left to keep it in
        asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(block));
        rotate_back(gradient, positions + (long long)(block / (heads / GRADIENT_HEADS)) * T, cosine,
            sine, q.position, T - 1);
    }
    float factors[2] = {scale, scale};
    long long at =
        batch * dquery_batch + (long long)(q.first + q.query) * dquery_token + head * dquery_head;
    store_rows<GRADIENT_QUERIES>(
        gradient, factors, 0, q.row, dquery, at, dquery_token, left, e4m3, slot);
}

static_assert(DKEY_THREADS == HELD_KEYS * 2, "a warp owns 16 rows");

// dk = dsᵀ q / √E and dv = pᵀ dout, each summed over the query heads that share the key/value head.
// Here keys are rows and queries are columns.
extern "C" __global__ void __launch_bounds__(DKEY_THREADS, DKEY_BLOCKS)
    attention_dkey(CONST_TENSOR(dout), CONST_TENSOR(query), CONST_TENSOR(key), CONST_TENSOR(value),
        const int* __restrict__ starts, const float2* __restrict__ statistics, TENSOR(dkey),
        TENSOR(dvalue), int T, int heads, int kv_heads, float scale, const int* positions,
        const float* cosine, const float* sine, unsigned char* e4m3_key, unsigned char* e4m3_value,
        Slot* slot) {
    constexpr int COLUMNS = STREAMED_QUERIES, KEY_TILE = HELD_KEYS * ROW_BYTES,
                  QUERY_TILE = COLUMNS * ROW_BYTES;
    constexpr int QUERY_TILES = 2 * KEY_TILE, DOUT_TILES = QUERY_TILES + 2 * QUERY_TILE,
                  STATISTICS = DOUT_TILES + 2 * QUERY_TILE;
    constexpr int STARTS = STATISTICS + 2 * COLUMNS * 8;
    static_assert(STARTS + 2 * COLUMNS * 4 == DKEY_BYTES, "two tiles of all that is streamed");
    int batch = blockIdx.y / kv_heads, kv_head = blockIdx.y % kv_heads, warp = threadIdx.x / 32,
        lane = threadIdx.x % 32, ratio = heads / kv_heads;
    int first_key = blockIdx.x * HELD_KEYS, count = min(HELD_KEYS, T - first_key), row = warp * 16;
    int group_first = first_key + row / OWNED * OWNED, group_last = group_first + OWNED - 1;
    query += batch * query_batch + kv_head * ratio * query_head,
        dout += batch * dout_batch + kv_head * ratio * dout_head;
    key += batch * key_batch + kv_head * key_head,
        value += batch * value_batch + kv_head * value_head;
    starts += (long long)batch * T, statistics += ((long long)batch * heads + kv_head * ratio) * T;

    using CopyKeys = TileCopy<HELD_KEYS, HELD_KEYS, DKEY_THREADS>;
    CopyKeys(key, key_token)(0, first_key, count);
    CopyKeys(value, value_token)(KEY_TILE, first_key, count);
    commit_copies();
    TileCopy<COLUMNS, COLUMNS, DKEY_THREADS> copy_query(query, query_token),
        copy_dout(dout, dout_token);
    const element *query_source = copy_query.source, *dout_source = copy_dout.source;
    auto fetch = [&](int head, int tile, int stage) {
        int first = tile * COLUMNS, present = T - first;
        copy_query.source = query_source + head * query_head;
        copy_dout.source = dout_source + head * dout_head;
        copy_query(QUERY_TILES + stage * QUERY_TILE, first, present);
        copy_dout(DOUT_TILES + stage * QUERY_TILE, first, present);
        int i = threadIdx.x, safe = min(first + i, T - 1);
        // beyond the last query dout is zero, and so is what it adds to either gradient
        if (i < COLUMNS) {
            copy_small<8>(
                STATISTICS + (stage * COLUMNS + i) * 8, statistics + head * T + safe, i < present);
            copy_small<4>(STARTS + (stage * COLUMNS + i) * 4, starts + safe, true);
        }
        commit_copies();
    };
    int first_tile = first_key / COLUMNS, tiles = 0;
    fetch(0, first_tile, 0);
    for (int begin = first_tile; begin * COLUMNS < T;
        begin += DKEY_THREADS) {  // tiles of queries that see some of the keys
        int first = (begin + threadIdx.x) * COLUMNS;
        tiles += __syncthreads_count(first < T && starts[min(first, T - 1)] < first_key + count);
    }
    await_copies<1>();
    Rows<HELD_KEYS> rows_key, rows_value;
    rows_key.load(0, row), rows_value.load(KEY_TILE, row);

    float sums_key[HEAD_BLOCKS][4], sums_value[HEAD_BLOCKS][4], factor = scale * BASE;
    clear(sums_key), clear(sums_value);
    int steps = tiles * ratio;
    for (int step = 0, head = 0, tile = first_tile; step < steps; step++) {
        int stage = step % 2, first = tile * COLUMNS;
        await_copies<0>();
        if (++tile == first_tile + tiles) tile = first_tile, head++;
        if (step + 1 < steps) fetch(head, tile, 1 - stage);
        const float2* rows = reinterpret_cast<const float2*>(shared + STATISTICS) + stage * COLUMNS;
        const int* stage_starts = reinterpret_cast<const int*>(shared + STARTS) + stage * COLUMNS;
        if (group_first > first + COLUMNS - 1 || stage_starts[0] > group_last) continue;

        float scores[COLUMNS / 8][4], dscores[COLUMNS / 8][4];
        pin(scores);
        begin_products();
        multiply_transposed<COLUMNS>(scores, rows_key, QUERY_TILES + stage * QUERY_TILE);
        commit_products();
        await_products<0>();
        pin(scores);
        bool all = group_last <= first && stage_starts[COLUMNS - 1] <= group_first;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            float4 two = *reinterpret_cast<const float4*>(rows + 8 * j + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[j][i] = power(fmaf(scores[j][i], factor, -(i % 2 ? two.z : two.x)));
        }
        if (!all) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                int column = 8 * j + lane % 4 * 2, held = first_key + row + lane / 4;
                int2 start = *reinterpret_cast<const int2*>(stage_starts + column);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    bool future = held + i / 2 * 8 > first + column + i % 2,
                         other = held + i / 2 * 8 < (i % 2 ? start.y : start.x);
                    scores[j][i] = future | other ? 0 : scores[j][i];
                }
            }
        }
        Weights<COLUMNS> probabilities, weights;
        probabilities.round(scores);
        pin(sums_value), pin(dscores);
        begin_products();
        multiply_transposed<COLUMNS>(dscores, rows_value, DOUT_TILES + stage * QUERY_TILE);
        commit_products();
        multiply_add<COLUMNS>(sums_value, probabilities, DOUT_TILES + stage * QUERY_TILE);
        commit_products();
        await_products<1>();
        pin(dscores);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            float4 two = *reinterpret_cast<const float4*>(rows + 8 * j + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i++)
                dscores[j][i] = probabilities.at(j, i) * (dscores[j][i] - (i % 2 ? two.w : two.y));
        }
        weights.round(dscores);
        pin(sums_key);
        begin_products();
        multiply_add<COLUMNS>(sums_key, weights, QUERY_TILES + stage * QUERY_TILE);
        commit_products();
        await_products<0>();
        pin(sums_key), pin(sums_value);
    }
    __syncthreads();  // the tiles of keys and values are not read any more
    if (positions)
        rotate_back(sums_key, positions + (long long)batch * T, cosine, sine,
            first_key + row + lane / 4, T - 1);
    float scales[2] = {scale, scale}, ones[2] = {1, 1};
    long long at_key =
        batch * dkey_batch + (long long)(first_key + row) * dkey_token + kv_head * dkey_head;
    long long at_value =
        batch * dvalue_batch + (long long)(first_key + row) * dvalue_token + kv_head * dvalue_head;
    store_rows<HELD_KEYS>(
        sums_key, scales, 0, row, dkey, at_key, dkey_token, count - row, e4m3_key, slot);
    store_rows<HELD_KEYS>(sums_value, ones, KEY_TILE, row, dvalue, at_value, dvalue_token,
        count - row, e4m3_value, slot);
}

// ---- decoding: few queries, many keys
// A block per query and head. Latency counts here, not work: so that all loads of a few hundred
// keys are under way at once, CHUNKS lanes share a key, each group of them takes AHEAD keys at a
// time, and the groups' results are put together at the end.

constexpr int DECODE_WARPS = DECODE_THREADS / 32, GROUPS = DECODE_THREADS / CHUNKS, AHEAD = 4;

extern "C" __global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode(CONST_TENSOR(query), CONST_TENSOR(key), CONST_TENSOR(value),
        const int* __restrict__ starts, const int* __restrict__ offsets, TENSOR(out),
        float* __restrict__ lse, int T, int S, int heads, int kv_heads, float scale) {
    int head = blockIdx.x, i = blockIdx.y, batch = blockIdx.z, kv_head = head / (heads / kv_heads);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / CHUNKS,
        chunk = lane % CHUNKS * PER_CHUNK;
    float factor = scale * BASE, queries[PER_CHUNK], sums[PER_CHUNK] = {}, top = NEVER, total = 0;
    auto shrink_to = [&](float mine, float highest) {
        return mine == NEVER ? 0.0f : power((mine - highest) * factor);
    };
    unpack(*reinterpret_cast<const uint4*>(query + batch * query_batch +
                                           (long long)i * query_token + head * query_head + chunk),
        queries);
    key += batch * key_batch + kv_head * key_head + chunk,
        value += batch * value_batch + kv_head * value_head + chunk;
    int begin = starts[(long long)batch * T + i],
        end = min(offsets[batch] + i + 1, S);
    for (int first = begin; first < end; first += GROUPS * AHEAD) {
        uint4 keys[AHEAD], values[AHEAD];
        float scores[AHEAD], highest = top;
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = first + u * GROUPS + group;
            keys[u] = values[u] = make_uint4(0, 0, 0, 0);
            if (at < end) {
                keys[u] = *reinterpret_cast<const uint4*>(key + (long long)at * key_token);
                values[u] = *reinterpret_cast<const uint4*>(value + (long long)at * value_token);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            float numbers[PER_CHUNK], score = 0;
            unpack(keys[u], numbers);
#pragma unroll
            for (int j = 0; j < PER_CHUNK; j++) score = fmaf(queries[j], numbers[j], score);
#pragma unroll
            for (int step = 1; step < CHUNKS; step *= 2) score += __shfl_xor_sync(~0u, score, step);
            scores[u] = first + u * GROUPS + group < end ? score : NEVER;
            highest = fmaxf(highest, scores[u]);
        }
        float shrink = shrink_to(top, highest);
        top = highest, total *= shrink;
#pragma unroll
        for (int j = 0; j < PER_CHUNK; j++) sums[j] *= shrink;
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            float numbers[PER_CHUNK], p = shrink_to(scores[u], top);
            unpack(values[u], numbers);
            total += p;
#pragma unroll
            for (int j = 0; j < PER_CHUNK; j++) sums[j] = fmaf(p, numbers[j], sums[j]);
        }
    }

    float highest = top;  // of the warp, then of the block
#pragma unroll
    for (int step = CHUNKS; step < 32; step *= 2)
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    float shrink = shrink_to(top, highest);
    total *= shrink;
#pragma unroll
    for (int step = CHUNKS; step < 32; step *= 2) total += __shfl_xor_sync(~0u, total, step);
    __shared__ float tops[DECODE_WARPS], totals[DECODE_WARPS], warp_sums[DECODE_WARPS][HEAD_SIZE];
#pragma unroll
    for (int j = 0; j < PER_CHUNK; j++) {
        float sum = sums[j] * shrink;
#pragma unroll
        for (int step = CHUNKS; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane < CHUNKS) warp_sums[warp][chunk + j] = sum;
    }
    if (lane == 0) tops[warp] = highest, totals[warp] = total;
    __syncthreads();
    int column = threadIdx.x;
    if (column >= HEAD_SIZE) return;
    float sum = 0, sum_of_row = 0;
    highest = NEVER;
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) highest = fmaxf(highest, tops[w]);
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) {
        float of_warp = shrink_to(tops[w], highest);
        sum_of_row = fmaf(totals[w], of_warp, sum_of_row);
        sum = fmaf(warp_sums[w][column], of_warp, sum);
    }
    out[batch * out_batch + (long long)i * out_token + head * out_head + column] =
        element(sum_of_row > 0 ? sum / sum_of_row : 0);
    if (column == 0)
        lse[((long long)batch * heads + head) * T + i] =
            (highest * factor + logarithm(sum_of_row)) / BASE;
}
