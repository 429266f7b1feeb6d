// A layer for up to 64 rows, each a new token: what decode_layer.cu computes for a few, with its
// products on matrix units (many_rows.cuh). TOKENS rows in turn belong to one sequence.
//
//   project    q, k, v = W_qkv norm(x);  q and k rotated;  k and v to their slot in the cache
//              norm(x) = w · x / √(mean(x²) + ε);  with QK_NORM q and k stay as they are: slots.cuh
//   attend     to the cache: many_rows_attention.cuh; up to 16 rows it leaves parts
//   output     x ← x + h · W_o attended
//   gate_up    hidden = silu(W_gate norm(x)) · W_up norm(x)
//   down       x ← x + h · W_down hidden
//
// Of a GPT-2 norm(x) is LayerNorm, every product has a bias, nothing is rotated, and
//
//   up         hidden = gelu(W_up norm(x) + c)
//
// in:  x (B, DIM) RESIDUAL, changed by `output` and `down`; weights (outputs, inputs) ACTIVATION;
//      w and, of a GPT-2, b (DIM) float, biases (outputs) ACTIVATION, else null; lengths
//      (B / TOKENS) int: the slot of a sequence's first new token; cosine, sine (positions,
//      HEAD_SIZE / 2) float; attended (B, HEADS · HEAD_SIZE) ACTIVATION or, where that is null,
//      parts and shares, of `attend`
// out: query (B, QUERY_HEADS · HEAD_SIZE), hidden (B, FFN) ACTIVATION; keys, values (B / TOKENS, S,
//      KV_HEADS, HEAD_SIZE) ACTIVATION
// bytes: outputs · inputs · activation, each weight once; of the L2, x once for each cluster
//
// Compiled in: those of many_rows.cuh, DIM, FFN, HEADS, KV_HEADS, HEAD_SIZE, KEY and VALUE (first
// rows of keys and values in W_qkv), UP (of W_up in the packed W_gate_up), PARTS (the most parts of
// attention), TOKENS, QK_NORM, GPT2; SPLIT, TILES and BYTES (shared memory) of each product; those
// of many_rows_attention.cuh.
#include "many_rows.cuh"
#include "gelu.cuh"
#include "many_rows_attention.cuh"

constexpr int ATTENDED = HEADS * HEAD_SIZE;

using Project = Product<DIM, PROJECT_SPLIT, PROJECT_TILES, true>;
using Output = Product<ATTENDED, OUTPUT_SPLIT, OUTPUT_TILES, false>;
using Down = Product<FFN, DOWN_SPLIT, DOWN_TILES, false>;
static_assert(Project::BYTES == PROJECT_BYTES && Output::BYTES == OUTPUT_BYTES &&
                  Down::BYTES == DOWN_BYTES,
    "what a launch asks for");

// A tile of `project` is 16 outputs of a head and those that rotary positions rotate into them.
struct Head {
    static constexpr int TILES = HALF / 16;  // of a head
    int kind, head, row, column;  // kind: 0 query, 1 key, 2 value; head: of its kind

    __device__ __forceinline__ Head(int tile) {
        head = tile / TILES, column = tile % TILES * 16;
        kind = head < HEADS ? 0 : head < HEADS + KV_HEADS ? 1 : 2;
        if (kind) head -= HEADS + (kind == 2 ? KV_HEADS : 0);
        row = (kind == 0 ? 0 : kind == 1 ? KEY : VALUE) + head * HEAD_SIZE + column;
    }
};

extern "C" __global__ void __cluster_dims__(PROJECT_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    project(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, const ACTIVATION* bias, const int* lengths, const float* cosine,
        const float* sine, ACTIVATION* query, ACTIVATION* keys, ACTIVATION* values, int rows,
        int capacity, long long cache_batch) {
    constexpr int LAST = (HEADS + 2 * KV_HEADS) * Head::TILES;
    const Project product;
    let_next_start();
    product.fetch(
        weight,
        [](int tile, int half) {
            return tile < LAST ? Head(tile).row + half * HALF : VALUE + KV_HEADS * HEAD_SIZE;
        },
        [](int) { return VALUE + KV_HEADS * HEAD_SIZE; });
    product.fetch_norm({norm, norm_bias, epsilon});
    Item items[Project::ITEMS];
    int slots[Project::ITEMS];
    float4 cos[Project::ITEMS], sin[Project::ITEMS];
#pragma unroll
    for (int i = 0; i < Project::ITEMS; ++i) {
        items[i] = product.item(i, rows);
        const int tile = product.first_tile + items[i].tile;
        items[i].there &= tile < LAST;
        // lengths change between tokens only: no need to wait for them
        slots[i] = items[i].there ? slot_of(lengths, items[i].row) : capacity;
        items[i].there &= slots[i] < capacity;
        cos[i] = make_float4(1, 1, 1, 1), sin[i] = {};
        if (!QK_NORM && !GPT2 && items[i].there && Head(tile).kind < 2) {
            const size_t at = size_t(slots[i]) * HALF + Head(tile).column + items[i].column;
            cos[i] = load_four(cosine + at), sin[i] = load_four(sine + at);
        }
    }
    wait_for_previous();
    product.take_normed(x, epsilon, rows);
    product.multiply();
#pragma unroll
    for (int i = 0; i < Project::ITEMS; ++i) {
        if (!items[i].there) continue;
        const Head head(product.first_tile + items[i].tile);
        const float inverse = product.inverse_rms(items[i], epsilon);
        const int output = head.row + items[i].column;
        const float4 a = biased(inverse * product.result(items[i], 0), bias, output),
                     b = biased(inverse * product.result(items[i], 1), bias, output + HALF);
        const float2 x0 = rotated(a.x, b.x, cos[i].x, sin[i].x),
                     x1 = rotated(a.y, b.y, cos[i].y, sin[i].y),
                     x2 = rotated(a.z, b.z, cos[i].z, sin[i].z),
                     x3 = rotated(a.w, b.w, cos[i].w, sin[i].w);
        const int row = items[i].row, element = head.head * HEAD_SIZE + head.column +
                                                items[i].column;
        ACTIVATION* to = query + size_t(row) * (QUERY_HEADS * HEAD_SIZE);
        if (QK_NORM && head.kind == 1)
            to += ATTENDED;
        else if (head.kind)
            to = (head.kind == 1 ? keys : values) + row / TOKENS * cache_batch +
                 size_t(slots[i]) * (KV_HEADS * HEAD_SIZE);
        store_four(to + element, make_float4(x0.x, x1.x, x2.x, x3.x));
        store_four(to + element + HALF, make_float4(x0.y, x1.y, x2.y, x3.y));
    }
}

// Puts the parts of attention together:
// out = Σ 2^(top − highest) · part / Σ 2^(top − highest) · total.
// The parts of all of a thread's vectors are under way together.
__device__ __forceinline__ void take_parts(const Output& product, const float* parts,
    const float2* shares, const int* lengths, int span, int splits, int rows) {
    constexpr int VECTORS = Output::DEPTH / WIDTH, EACH = ceiling(ROWS * VECTORS, THREADS);
    float2 share[EACH][PARTS];
    Eight part[EACH][PARTS];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int index = threadIdx.x + i * THREADS, row = index / VECTORS,
                  k = product.rank * Output::DEPTH + index % VECTORS * WIDTH;
        const bool present = row < rows && k < ATTENDED;
        const int there = present ? min(slot_of(lengths, row) / span + 1, splits) : 0;
        const size_t first = size_t(row * HEADS + k / HEAD_SIZE) * splits;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            share[i][p] = make_float2(-INFINITE, 0), part[i][p] = {};
            if (p >= there) continue;
            share[i][p] = shares[first + p];
            part[i][p] = load(parts + (first + p) * HEAD_SIZE + k % HEAD_SIZE);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int index = threadIdx.x + i * THREADS, row = index / VECTORS;
        float highest = -1e30f, total = 0;  // rows that are not there have no part
        Eight sum = {};
#pragma unroll
        for (int p = 0; p < PARTS; ++p) highest = fmaxf(highest, share[i][p].x);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const float factor = exp2f(share[i][p].x - highest);
            total = fmaf(factor, share[i][p].y, total);
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                sum.at[e] = fmaf(factor, part[i][p].at[e], sum.at[e]);
        }
        const float inverse = 1.0f / fmaxf(total, 1e-30f);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sum.at[e] *= inverse;
        if (row < ROWS)
            store(reinterpret_cast<ACTIVATION*>(
                      memory + chunk_offset<ROWS>(row, index % VECTORS)),
                sum);
    }
    Output::await_copies();
}

// x ← x + h · (product + bias), of DIM outputs
template <class P>
struct Step {
    Item items[P::ITEMS];
    float4 before[P::ITEMS][2];

    // To be read while the product is computed
    __device__ __forceinline__ Step(const P& product, const RESIDUAL* x, int rows) {
#pragma unroll
        for (int i = 0; i < P::ITEMS; ++i) {
            items[i] = product.item(i, rows);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (writes(product, i, half)) before[i][half] = load_four(x + at(product, i, half));
        }
    }
    __device__ __forceinline__ int column(const P& product, int i, int half) const {
        return (product.first_tile + items[i].tile) * 32 + half * 16 + items[i].column;
    }
    __device__ __forceinline__ size_t at(const P& product, int i, int half) const {
        return size_t(items[i].row) * DIM + column(product, i, half);
    }
    __device__ __forceinline__ bool writes(const P& product, int i, int half) const {
        return items[i].there && column(product, i, half) < DIM;
    }
    __device__ __forceinline__ void
    finish(const P& product, RESIDUAL* x, float step_size, const ACTIVATION* bias) const {
#pragma unroll
        for (int i = 0; i < P::ITEMS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (writes(product, i, half))
                    store_four(x + at(product, i, half),
                        before[i][half] + step_size * biased(product.result(items[i], half), bias,
                                                          column(product, i, half)));
    }
};

// First of 16 outputs among rows one behind the other
__device__ __forceinline__ int plain_row(int tile, int half) { return tile * 32 + half * 16; }

extern "C" __global__ void __cluster_dims__(OUTPUT_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    output(const ACTIVATION* attended, const float* parts, const float2* shares,
        const int* lengths, int span, int splits, const ACTIVATION* weight, const ACTIVATION* bias,
        float step_size, RESIDUAL* x, int rows) {
    const Output product;
    let_next_start();
    product.fetch(weight, plain_row, [](int) { return DIM; });
    wait_for_previous();
    const Step<Output> step(product, x, rows);
    if (PARTS == 1) product.take(attended, rows);
    else take_parts(product, parts, shares, lengths, span, splits, rows);
    product.multiply();
    step.finish(product, x, step_size, bias);
}

#if GPT2
using Up = Product<DIM, UP_SPLIT, UP_TILES, true>;
static_assert(Up::BYTES == UP_BYTES, "what a launch asks for");

extern "C" __global__ void __cluster_dims__(UP_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    up(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, const ACTIVATION* bias, ACTIVATION* hidden, int rows) {
    const Up product;
    let_next_start();
    product.fetch(weight, plain_row, [](int) { return FFN; });
    product.fetch_norm({norm, norm_bias, epsilon});
    wait_for_previous();
    product.take_normed(x, epsilon, rows);
    product.multiply();
#pragma unroll
    for (int i = 0; i < Up::ITEMS; ++i) {
        const Item item = product.item(i, rows);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = plain_row(product.first_tile + item.tile, half) + item.column;
            if (!item.there || column >= FFN) continue;
            const float4 z = biased(product.result(item, half), bias, column);
            store_four(hidden + size_t(item.row) * FFN + column,
                make_float4(z.x * gelu_sigma(z.x), z.y * gelu_sigma(z.y), z.z * gelu_sigma(z.z),
                    z.w * gelu_sigma(z.w)));
        }
    }
}
#else
using GateUp = Product<DIM, GATE_UP_SPLIT, GATE_UP_TILES, true>;
static_assert(GateUp::BYTES == GATE_UP_BYTES, "what a launch asks for");

// A tile is 16 rows of W_gate and the same of W_up.
extern "C" __global__ void __cluster_dims__(GATE_UP_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    gate_up(const RESIDUAL* x, const float* norm, float epsilon, const ACTIVATION* weight,
        ACTIVATION* hidden, int rows) {
    const GateUp product;
    let_next_start();
    product.fetch(
        weight, [](int tile, int half) { return tile * 16 + half * UP; },
        [](int half) { return FFN + half * UP; });
    product.fetch_norm({norm, nullptr, epsilon});
    wait_for_previous();
    product.take_normed(x, epsilon, rows);
    product.multiply();
#pragma unroll
    for (int i = 0; i < GateUp::ITEMS; ++i) {
        const Item item = product.item(i, rows);
        const int column = (product.first_tile + item.tile) * 16 + item.column;
        if (!item.there || column >= FFN) continue;
        const float inverse = product.inverse_rms(item, epsilon);
        const float4 gate = inverse * product.result(item, 0),
                     up = inverse * product.result(item, 1);
        store_four(hidden + size_t(item.row) * FFN + column,
            make_float4(gated_by_division(gate.x, up.x), gated_by_division(gate.y, up.y),
                gated_by_division(gate.z, up.z), gated_by_division(gate.w, up.w)));
    }
}
#endif

extern "C" __global__ void __cluster_dims__(DOWN_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    down(const ACTIVATION* hidden, const ACTIVATION* weight, const ACTIVATION* bias,
        float step_size, RESIDUAL* x, int rows) {
    const Down product;
    let_next_start();
    product.fetch(weight, plain_row, [](int) { return DIM; });
    wait_for_previous();
    const Step<Down> step(product, x, rows);
    product.take(hidden, rows);
    product.multiply();
    step.finish(product, x, step_size, bias);
}
