// A layer for the tokens of prompts, N = B · T of them, on matrix units. The norms take no kernels
// of their own: the kernel that writes x also writes x · w, with the weight w of the next norm, and
// sums of the squares of x. The next product reads x · w, and its result takes the factor 1 / r.
//
//   begin      the same for the x in front of the first layer
//   project    q, k, v = W_qkv norm(x);  q and k rotated;  k and v to their slots in the cache
//   (attention.cu attends)
//   output     x ← x + h · W_o attended
//   gate_up    hidden = silu(W_gate norm(x)) · W_up norm(x)
//   down       x ← x + h · W_down hidden
//
// in:  x (N, DIM) RESIDUAL, changed by `output` and `down`; weights (outputs, inputs) ACTIVATION;
//      w (DIM) float; offsets (B) int: the slot of a row's first token; cosine, sine (positions,
//      head size / 2) float; attended (N, HEADS · head size) ACTIVATION
// in and out: scaled (N, DIM) ACTIVATION: x · w; squares (parts, N) float: sums of x²
// out: query (N, HEADS · head size), hidden (N, FFN) ACTIVATION; keys, values (B, S, KV_HEADS,
//      head size) ACTIVATION
// bytes: outputs · inputs · activation + N · (inputs + outputs) · activation; of the L2, both
//      factors once for each tile
//
// A block takes ROWS tokens × PAIRS tiles of 16 + 16 outputs. Factors pass through a ring of
// STAGES stages of 64 inputs, in panels of matrix_units.cuh. The weights of the first stages are
// loaded ahead of the end of the kernel before (overlap.cuh). With wgmma a warp has 16 tokens of
// each tile, with mma.sync one tile of more tokens.
//
// Compiled in: DIM, FFN, HEADS, KV_HEADS, ROTATED_HEAD (the head size), KEY and VALUE (first rows
// of keys and values in W_qkv), UP (of W_up in the packed W_gate_up); ROWS, PAIRS, WARPS, STAGES
// and BYTES (shared memory) of the narrow and the wide products; ROW_WARPS, warps of a block of
// `begin`; HEAD_SIZE=64, UNIT and ROWS_IN_REGISTERS=0 for matrix_units.cuh.
#include "common.cuh"
#include "matrix_units.cuh"
#include "overlap.cuh"
#include "rotation.cuh"
#include "swiglu.cuh"

constexpr int ATTENDED = HEADS * ROTATED_HEAD, HALF = ROTATED_HEAD / 2, DEPTH = 64;
constexpr bool BY_WGMMA = UNIT == WGMMA;

template <int INPUTS, int ROWS, int PAIRS, int WARPS, int STAGES, int BYTES>
struct Product {
    static constexpr int THREADS = WARPS * 32, ALL_STEPS = (INPUTS + DEPTH - 1) / DEPTH,
                         WARP_ROWS = BY_WGMMA ? 16 : ROWS * PAIRS / WARPS,
                         TILES = BY_WGMMA ? PAIRS : WARP_ROWS / 16;  // of 16 rows, of a warp
    static constexpr int WEIGHT = ROWS * 128, STAGE = WEIGHT + PAIRS * 32 * 128,
                         INVERSE = STAGES * STAGE;  // 1 / r of the block's rows
    // wgmma still reads the stage before the current one while others are loaded
    static constexpr int AHEAD = BY_WGMMA ? STAGES - 2 : STAGES - 1;
    static constexpr int AT_ONCE = THREADS / 8;  // rows that the threads load at a time
    static_assert(BYTES == INVERSE + ROWS * 4 && THREADS >= ROWS, "what a launch asks for");
    static_assert(!BY_WGMMA || (WARPS == ROWS / 16 && AHEAD > 0), "four warps to 64 rows");

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = threadIdx.x % 8,
              line = threadIdx.x / 8;
    const int first_row = blockIdx.y * ROWS, first_pair = blockIdx.x * PAIRS,
              warp_row = (BY_WGMMA ? warp : warp / PAIRS) * WARP_ROWS;
    const ACTIVATION* weights[PAIRS * 32 / AT_ONCE];
    const ACTIVATION* inputs[ROWS / AT_ONCE];
    float sums[TILES * 4][4];

    // Loads the weights of the first stages. `row_of(pair, half)` is the first of 16 rows, of which
    // those below `end_of(half)` are there.
    template <class RowOf, class EndOf>
    __device__ __forceinline__ void
    begin(const ACTIVATION* weight, const RowOf& row_of, const EndOf& end_of) {
#pragma unroll
        for (int i = 0; i < PAIRS * 32 / AT_ONCE; ++i) {
            const int at = i * AT_ONCE + line, half = at % 32 / 16,
                      row = row_of(first_pair + at / 32, half) + at % 16;
            weights[i] =
                row < end_of(half) ? weight + size_t(row) * INPUTS + chunk * WIDTH : nullptr;
        }
#pragma unroll
        for (int step = 0; step < AHEAD; ++step) load_weights(weight, step);
    }

    __device__ __forceinline__ void load_weights(const ACTIVATION* any, int step) const {
        const bool inside = step * DEPTH + chunk * WIDTH < INPUTS;
#pragma unroll
        for (int i = 0; i < PAIRS * 32 / AT_ONCE; ++i) {
            const bool present = inside && weights[i];
            copy_16(step % STAGES * STAGE + WEIGHT +
                        chunk_offset<PAIRS * 32>(i * AT_ONCE + line, chunk),
                present ? weights[i] + step * DEPTH : any, present);
        }
    }

    __device__ __forceinline__ void load_inputs(const ACTIVATION* any, int step) const {
        const bool inside = step * DEPTH + chunk * WIDTH < INPUTS;
#pragma unroll
        for (int i = 0; i < ROWS / AT_ONCE; ++i) {
            const bool present = inside && inputs[i];
            copy_16(step % STAGES * STAGE + chunk_offset<ROWS>(i * AT_ONCE + line, chunk),
                present ? inputs[i] + step * DEPTH : any, present);
        }
    }

    // x (rows, INPUTS); with `squares`, 1 / r of its rows is made of these `parts`
    __device__ __forceinline__ void multiply(const ACTIVATION* x, const ACTIVATION* weight,
        int rows, const float* squares = nullptr, int parts = 0, float epsilon = 0) {
#pragma unroll
        for (int i = 0; i < ROWS / AT_ONCE; ++i) {
            const int row = first_row + i * AT_ONCE + line;
            inputs[i] = row < rows ? x + size_t(row) * INPUTS + chunk * WIDTH : nullptr;
        }
#pragma unroll
        for (int step = 0; step < AHEAD; ++step) load_inputs(x, step), commit_copies();
        if (squares && threadIdx.x < ROWS) {
            const int row = min(first_row + int(threadIdx.x), rows - 1);
            float sum = 0;
#pragma unroll 8
            for (int part = 0; part < parts; ++part) sum += squares[size_t(part) * rows + row];
            reinterpret_cast<float*>(shared + INVERSE)[threadIdx.x] =
                1.0f / sqrtf(sum / INPUTS + epsilon);
        }
#pragma unroll
        for (int j = 0; j < TILES * 4; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
#pragma unroll 1
        for (int step = 0; step < ALL_STEPS; ++step) {
            await_copies<AHEAD - 1>();
            if (BY_WGMMA) multiply_stage(step % STAGES * STAGE);
            if (step + AHEAD < ALL_STEPS) {
                load_weights(weight, step + AHEAD);
                load_inputs(x, step + AHEAD);
            }
            commit_copies();
            if (BY_WGMMA) await_products<1>();
            else multiply_stage(step % STAGES * STAGE);
        }
        await_products<0>();
        pin(sums);
    }

    __device__ __forceinline__ void multiply_stage(int stage) {
#if UNIT == WGMMA
        begin_products();
#pragma unroll
        for (int s = 0; s < DEPTH / 16; ++s)
            wgmma(sums, descriptor(stage + warp_row / 64 * (64 * 128), s * 32, 16),
                descriptor(stage + WEIGHT, s * 32, 16), 1);
        commit_products();
#else
#pragma unroll
        for (int s = 0; s < DEPTH / 16; ++s) {
            unsigned left[TILES][4], right[2][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                load_matrices(left[t],
                    stage + chunk_offset<ROWS>(warp_row + t * 16 + lane % 16, 2 * s + lane / 16));
#pragma unroll
            for (int half = 0; half < 2; ++half)
                load_matrices(right[half],
                    stage + WEIGHT +
                        chunk_offset<PAIRS * 32>(
                            warp % PAIRS * 32 + half * 16 + lane % 8 + lane / 16 * 8,
                            2 * s + lane / 8 % 2));
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    mma(sums[t * 4 + j], left[t], right[j / 2][j % 2 * 2],
                        right[j / 2][j % 2 * 2 + 1]);
        }
#endif
    }

    // Calls result(row, pair, column, first, second) for two outputs from `column` (0 … 15) on of
    // the first 16 of a tile, and for those of the second; then done(row, pair), in all lanes.
    template <class Result, class Done>
    __device__ __forceinline__ void
    finish(int rows, const Result& result, const Done& done) const {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row =
                              first_row + warp_row + (BY_WGMMA ? 0 : t * 16) + i * 8 + lane / 4,
                          pair = first_pair + (BY_WGMMA ? t : warp % PAIRS);
                if (row < rows) {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const float(&one)[4] = sums[t * 4 + j], (&other)[4] = sums[t * 4 + j + 2];
                        result(row, pair, j * 8 + lane % 4 * 2,
                            make_float2(one[2 * i], one[2 * i + 1]),
                            make_float2(other[2 * i], other[2 * i + 1]));
                    }
                }
                done(row, pair);
            }
    }

    __device__ __forceinline__ float inverse_rms(int row) const {
        return reinterpret_cast<const float*>(shared + INVERSE)[row - first_row];
    }
};

using Narrow = Product<DIM, NARROW_ROWS, NARROW_PAIRS, NARROW_WARPS, NARROW_STAGES, NARROW_BYTES>;
using Output =
    Product<ATTENDED, NARROW_ROWS, NARROW_PAIRS, NARROW_WARPS, NARROW_STAGES, NARROW_BYTES>;
using Down = Product<FFN, NARROW_ROWS, NARROW_PAIRS, NARROW_WARPS, NARROW_STAGES, NARROW_BYTES>;
using Wide = Product<DIM, WIDE_ROWS, WIDE_PAIRS, WIDE_WARPS, WIDE_STAGES, WIDE_BYTES>;

__device__ __forceinline__ void store_two(bfloat16* to, float2 values) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(values.x, values.y);
}

__device__ __forceinline__ void store_two(float* to, float2 values) {
    *reinterpret_cast<float2*>(to) = values;
}

__device__ __forceinline__ float2 load_two(const bfloat16* from) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}

__device__ __forceinline__ float2 load_two(const float* from) {
    return *reinterpret_cast<const float2*>(from);
}

// A warp takes a row.
extern "C" __global__ void __launch_bounds__(ROW_WARPS * 32)
    begin(const RESIDUAL* x, const float* norm, ACTIVATION* scaled, float* squares, int rows) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0;
    for (int at = threadIdx.x % 32 * WIDTH; at < DIM; at += 32 * WIDTH) {
        Eight value = load(x + size_t(row) * DIM + at);
        const Eight scale = load(norm + at);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            sum = fmaf(value.at[i], value.at[i], sum), value.at[i] *= scale.at[i];
        store(scaled + size_t(row) * DIM + at, value);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[row] = sum;
}

// A tile of `project` is 16 outputs of a head and those that rotary positions rotate into them.
struct Head {
    static constexpr int TILES = HALF / 16, LAST = (HEADS + 2 * KV_HEADS) * TILES;
    int kind, head, row, column;  // kind: 0 query, 1 key, 2 value; head: of its kind

    __device__ __forceinline__ Head(int tile) {
        head = tile / TILES, column = tile % TILES * 16;
        kind = head < HEADS ? 0 : head < HEADS + KV_HEADS ? 1 : 2;
        if (kind) head -= HEADS + (kind == 2 ? KV_HEADS : 0);
        row = (kind == 0 ? 0 : kind == 1 ? KEY : VALUE) + head * ROTATED_HEAD + column;
    }
};

extern "C" __global__ void __launch_bounds__(Narrow::THREADS)
    project(const ACTIVATION* scaled, const float* squares, int parts, float epsilon,
        const ACTIVATION* weight, const int* offsets, const float* cosine, const float* sine,
        ACTIVATION* query, ACTIVATION* keys, ACTIVATION* values, int rows, int tokens,
        int capacity, long long cache_batch) {
    constexpr int END = VALUE + KV_HEADS * ROTATED_HEAD;
    Narrow product;
    let_next_start();
    product.begin(
        weight,
        [](int tile, int half) {
            return tile < Head::LAST ? Head(tile).row + half * HALF : END;
        },
        [](int) { return END; });
    wait_for_previous();
    product.multiply(scaled, weight, rows, squares, parts, epsilon);
    product.finish(
        rows,
        [&](int row, int pair, int column, float2 first, float2 second) {
            const int b = row / tokens, slot = offsets[b] + row % tokens;
            if (pair >= Head::LAST || slot >= capacity) return;
            const Head head(pair);
            const float inverse = product.inverse_rms(row);
            float2 cos = make_float2(1, 1), sin = {};
            if (head.kind < 2) {
                const size_t at = size_t(slot) * HALF + head.column + column;
                cos = load_two(cosine + at), sin = load_two(sine + at);
            }
            const float2 x0 = rotated(inverse * first.x, inverse * second.x, cos.x, sin.x),
                         x1 = rotated(inverse * first.y, inverse * second.y, cos.y, sin.y);
            ACTIVATION* to = query + size_t(row) * ATTENDED;
            if (head.kind)
                to = (head.kind == 1 ? keys : values) + b * cache_batch +
                     size_t(slot) * (KV_HEADS * ROTATED_HEAD);
            to += head.head * ROTATED_HEAD + head.column + column;
            store_two(to, make_float2(x0.x, x1.x));
            store_two(to + HALF, make_float2(x0.y, x1.y));
        },
        [](int, int) {});
}

// x ← x + h · product, and what the next norm needs: x · norm and sums of x² over a tile's outputs
template <class P>
__device__ __forceinline__ void step(P& product, float step_size, const float* norm, RESIDUAL* x,
    ACTIVATION* scaled, float* squares, int rows) {
    float sum = 0;
    product.finish(
        rows,
        [&](int row, int pair, int column, float2 first, float2 second) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = pair * 32 + half * 16 + column;
                if (at >= DIM) continue;
                const float2 moved = half ? second : first;
                float2 value = load_two(x + size_t(row) * DIM + at);
                value.x = rounded(value.x + step_size * moved.x, x);
                value.y = rounded(value.y + step_size * moved.y, x);
                store_two(x + size_t(row) * DIM + at, value);
                const float2 scale = load_two(norm + at);
                store_two(scaled + size_t(row) * DIM + at,
                    make_float2(value.x * scale.x, value.y * scale.y));
                sum = fmaf(value.x, value.x, fmaf(value.y, value.y, sum));
            }
        },
        [&](int row, int pair) {
#pragma unroll
            for (int distance = 1; distance < 4; distance *= 2)
                sum += __shfl_xor_sync(WHOLE_WARP, sum, distance);
            if (product.lane % 4 == 0 && row < rows && pair * 32 < DIM)
                squares[size_t(pair) * rows + row] = sum;
            sum = 0;
        });
}

// First of 16 outputs among rows one behind the other
__device__ __forceinline__ int plain_row(int tile, int half) { return tile * 32 + half * 16; }

extern "C" __global__ void __launch_bounds__(Output::THREADS)
    output(const ACTIVATION* attended, const ACTIVATION* weight, float step_size,
        const float* norm, RESIDUAL* x, ACTIVATION* scaled, float* squares, int rows) {
    Output product;
    let_next_start();
    product.begin(weight, plain_row, [](int) { return DIM; });
    wait_for_previous();
    product.multiply(attended, weight, rows);
    step(product, step_size, norm, x, scaled, squares, rows);
}

// A tile is 16 rows of W_gate and the same of W_up.
extern "C" __global__ void __launch_bounds__(Wide::THREADS)
    gate_up(const ACTIVATION* scaled, const float* squares, int parts, float epsilon,
        const ACTIVATION* weight, ACTIVATION* hidden, int rows) {
    Wide product;
    let_next_start();
    product.begin(
        weight, [](int tile, int half) { return tile * 16 + half * UP; },
        [](int half) { return FFN + half * UP; });
    wait_for_previous();
    product.multiply(scaled, weight, rows, squares, parts, epsilon);
    product.finish(
        rows,
        [&](int row, int pair, int column, float2 gate, float2 up) {
            const int at = pair * 16 + column;
            if (at >= FFN) return;
            const float inverse = product.inverse_rms(row);
            store_two(hidden + size_t(row) * FFN + at,
                make_float2(gated(inverse * gate.x, inverse * up.x),
                    gated(inverse * gate.y, inverse * up.y)));
        },
        [](int, int) {});
}

extern "C" __global__ void __launch_bounds__(Down::THREADS)
    down(const ACTIVATION* hidden, const ACTIVATION* weight, float step_size, const float* norm,
        RESIDUAL* x, ACTIVATION* scaled, float* squares, int rows) {
    Down product;
    let_next_start();
    product.begin(weight, plain_row, [](int) { return DIM; });
    wait_for_previous();
    product.multiply(hidden, weight, rows);
    step(product, step_size, norm, x, scaled, squares, rows);
}
