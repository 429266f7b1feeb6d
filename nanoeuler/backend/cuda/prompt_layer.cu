// A layer for the tokens of prompts on Hopper in bfloat16: four products that take everything
// between them along. Attention is attention.cu's.
//
//   project   q, k, v = W_qkv norm(x);  heads of q and k normed (with QK_NORM) and rotated;
//             k and v to their slots in the cache
//   output    x ← x + h · W_o attended
//   gate_up   hidden = silu(W_gate norm(x)) · W_up norm(x)
//   down      x ← x + h · W_down hidden
//
// norm(x) = w · x / r,  r = √(mean(x²) + ε).  Who writes x (`output`, `down` and, of the
// embeddings, `scale_rows`) also writes w · x, rounded, for the norm that comes next, and the sums
// of the squares of 64 columns each. As 1/r is the same for a whole row, the next product
// multiplies its results by it.
//
// Where a layer's results are needed for the last token of each sequence alone, its `project` has
// `ends` (N / tokens) int, the slots of those tokens, and writes their queries alone, to
// (N / tokens, HEADS, HEAD_SIZE). Who writes x in front of that layer has `last` (N / tokens, DIM)
// RESIDUAL, where x of those tokens goes and no other. Elsewhere both are null.
//
// in:  x (N, DIM) RESIDUAL, changed by `output` and `down`; scaled = w · x (N, DIM), attended
//      (N, HEADS · HEAD_SIZE), hidden (N, FFN) and the weights (outputs, inputs) bfloat16, by maps
//      of boxes of 64 × 64; squares (N, DIM / 64) float; w (DIM) float; lengths (N / tokens) int:
//      the slot of a sequence's first new token; cosine, sine (positions, HEAD_SIZE / 2) float; w
//      of heads (HEAD_SIZE) float, or null for ones
// out: query (N, HEADS, HEAD_SIZE), hidden bfloat16; keys, values (N / tokens, capacity, KV_HEADS,
//      HEAD_SIZE) bfloat16; squares, and scaled unless w is null
// bytes: each weight and each factor once from memory; tiles from the L2
//
// Tiles are multiplied as tile_product.cuh does.
//
// Compiled in: DIM, FFN, HEADS, KV_HEADS, HEAD_SIZE, KEY and VALUE (first rows of keys and values
// in W_qkv), UP (of W_up in the packed W_gate_up), QK_NORM, of each kernel STAGES and BYTES of
// shared memory; UNIT=WGMMA and ROWS_IN_REGISTERS=0, as matrix_units.cuh asks.
#include "tile_product.cuh"
#include "rotation.cuh"
#include "swiglu.cuh"

constexpr int CHUNK = 64;  // columns of x whose squares are added up together
constexpr int ATTENDED = HEADS * HEAD_SIZE;

static_assert(HEAD_SIZE % 64 == 0 && DIM % CHUNK == 0 && FFN % 64 == 0, "whole tiles of columns");

// ---- two neighbouring elements of x

__device__ __forceinline__ float2 load_two(const float* from) {
    return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float2 load_two(const bfloat16* from) {
    return unpack_bf16(*reinterpret_cast<const unsigned*>(from));
}
__device__ __forceinline__ void store_two(float* to, float2 x) {
    *reinterpret_cast<float2*>(to) = x;
}
__device__ __forceinline__ void store_two(bfloat16* to, float2 x) {
    *reinterpret_cast<unsigned*>(to) = pack_bf16(x.x, x.y);
}
// As an array of this type has them.
__device__ __forceinline__ float2 rounded(float2 x, const float*) { return x; }
__device__ __forceinline__ float2 rounded(float2 x, const bfloat16*) {
    return unpack_bf16(pack_bf16(x.x, x.y));
}

// The row of `last` in which x of `token` goes: null, unless it is the last one of its sequence.
__device__ __forceinline__ RESIDUAL*
row_of_last(RESIDUAL* last, int token, const int* lengths, const int* ends, int tokens) {
    const int b = token / tokens, slot = lengths[b] + token - b * tokens;
    return slot == ends[b] ? last + size_t(b) * DIM : nullptr;
}

// A warp takes a chunk of a row.
extern "C" __global__ void
scale_rows(const RESIDUAL* x, const float* norm, RESIDUAL* last, bfloat16* scaled, float* squares,
    int rows, const int* lengths, const int* ends, int tokens) {
    let_next_start();
    wait_for_previous();
    const int chunk = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (chunk >= rows * (DIM / CHUNK)) return;
    const size_t at = size_t(chunk) * CHUNK + lane * 2;
    const float2 value = load_two(x + at), weight = load_two(norm + at % DIM);
    *reinterpret_cast<unsigned*>(scaled + at) = pack_bf16(value.x * weight.x, value.y * weight.y);
    if (last) {
        RESIDUAL* to = row_of_last(last, chunk / (DIM / CHUNK), lengths, ends, tokens);
        if (to) store_two(to + at % DIM, value);
    }
    float sum = fmaf(value.x, value.x, value.y * value.y);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) squares[chunk] = sum;
}

// 1/r of this lane's two rows, `row` and the one 8 below.
__device__ __forceinline__ float2
inverse_rms(const float* squares, float epsilon, int row, int rows) {
    float2 sum = {0, 0};
    const float* upper = squares + size_t(min(row, rows - 1)) * (DIM / CHUNK);
    const float* lower = squares + size_t(min(row + 8, rows - 1)) * (DIM / CHUNK);
#pragma unroll
    for (int i = 0; i < DIM / CHUNK; ++i) sum.x += upper[i], sum.y += lower[i];
    return make_float2(1 / sqrtf(sum.x / DIM + epsilon), 1 / sqrtf(sum.y / DIM + epsilon));
}

// ---- q, k, v

// A block takes a head.
using ProjectTile = Tile<2, HEAD_SIZE, PROJECT_STAGES, PROJECT_BYTES>;

extern "C" __global__ void __launch_bounds__(ProjectTile::THREADS, 1)
    project(const __grid_constant__ Maps maps, bfloat16* keys, bfloat16* values,
        const float* query_norm, const float* key_norm, float epsilon, const int* ends,
        const float* squares, const int* lengths, const float* cosine, const float* sine,
        bfloat16* query, int rows, int tokens, int capacity, long long cache_batch) {
    constexpr int HALF = HEAD_SIZE / 2;
    const int lane = threadIdx.x % 32, head = blockIdx.x;
    const int kind = head < HEADS              ? 0
                     : head < HEADS + KV_HEADS ? 1
                                               : 2;
    const int kv_head = head - HEADS - (kind == 2 ? KV_HEADS : 0);
    const int first =
        kind == 0 ? head * HEAD_SIZE : (kind == 1 ? KEY : VALUE) + kv_head * HEAD_SIZE;
    let_next_start();
    const int tile = blockIdx.y * ProjectTile::ROWS, row = tile + threadIdx.x / 32 * 16;
    float sums[HEAD_SIZE / 8][4];
    float2 inverse, cos[2][HEAD_SIZE / 16], sin[2][HEAD_SIZE / 16];
    bfloat16* targets[STORED];
    multiply<DIM, ProjectTile>(sums, maps, tile, first, first + 64, [&] {
        if (kind < 2) {  // lengths change between prompts only: no need to wait for them
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = min(row + lane / 4 + 8 * half, rows - 1);
                const int slot = lengths[token / tokens] + token % tokens;
                const size_t angle = size_t(min(slot, capacity - 1)) * HALF + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < HEAD_SIZE / 16; ++j) {
                    cos[half][j] = load_two(cosine + angle + 8 * j);
                    sin[half][j] = load_two(sine + angle + 8 * j);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < STORED; ++k) {
            const int token = row + stored_row(k), b = min(token, rows - 1) / tokens;
            const int slot = lengths[b] + token - b * tokens;
            bfloat16* own = query + (size_t(ends ? b : token) * HEADS + head) * HEAD_SIZE;
            if (kind > 0)
                own = (kind == 1 ? keys : values) + b * cache_batch +
                      (size_t(slot) * KV_HEADS + kv_head) * HEAD_SIZE;
            const bool needed = kind > 0 ? slot < capacity : !ends || slot == ends[b];
            targets[k] = token < rows && needed ? own : nullptr;
        }
        wait_for_previous();
        inverse = inverse_rms(squares, epsilon, row + lane / 4, rows);
    });
    if (!ProjectTile::computes()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float scale = half ? inverse.y : inverse.x;
        float of_head = 1;
#pragma unroll
        for (int j = 0; j < HEAD_SIZE / 8; ++j)
            sums[j][2 * half] *= scale, sums[j][2 * half + 1] *= scale;
        if (kind == 2) continue;
        const float* weight = kind == 0 ? query_norm : key_norm;
        if (QK_NORM) {
            float total = 0;
#pragma unroll
            for (int j = 0; j < HEAD_SIZE / 8; ++j)
                total = fmaf(sums[j][2 * half], sums[j][2 * half],
                    fmaf(sums[j][2 * half + 1], sums[j][2 * half + 1], total));
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            of_head = 1 / sqrtf(total / HEAD_SIZE + epsilon);
        }
#pragma unroll
        for (int j = 0; j < HEAD_SIZE / 16; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float &a = sums[j][2 * half + i], &b = sums[j + HEAD_SIZE / 16][2 * half + i];
                if (QK_NORM) {
                    const int column = 8 * j + lane % 4 * 2 + i;
                    a *= of_head * (weight ? weight[column] : 1);
                    b *= of_head * (weight ? weight[column + HALF] : 1);
                }
                const float2 c = cos[half][j], s = sin[half][j];
                const float2 pair = rotated(a, b, i ? c.y : c.x, i ? s.y : s.x);
                a = pair.x, b = pair.y;
            }
        }
    }
#pragma unroll
    for (int panel = 0; panel < HEAD_SIZE / 64; ++panel)
        store_rows(sums + 8 * panel, panel * ProjectTile::STAGE, [&](int, int k) {
            return targets[k] ? targets[k] + 64 * panel : nullptr;
        });
}

// ---- SwiGLU

// A block takes 64 columns of gate and those of up that belong to them. Nearly all multiprocessors
// have one, which starts when that of `output` has ended and so has nothing to wait for.
using GateUpTile = Tile<2, 128, GATE_UP_STAGES, GATE_UP_BYTES, 1>;

extern "C" __global__ void __launch_bounds__(GateUpTile::THREADS, 1)
    gate_up(const __grid_constant__ Maps maps, float epsilon, const float* squares,
        bfloat16* hidden, int rows) {
    const int lane = threadIdx.x % 32, column = blockIdx.x * 64;
    let_next_start();
    const int tile = blockIdx.y * GateUpTile::ROWS, row = tile + threadIdx.x / 32 * 16;
    float sums[16][4];
    float2 inverse;
    multiply<DIM, GateUpTile>(sums, maps, tile, column, UP + column, [&] {
        wait_for_previous();
        inverse = inverse_rms(squares, epsilon, row + lane / 4, rows);
    });
    if (!GateUpTile::computes()) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float scale = i / 2 ? inverse.y : inverse.x;
            sums[j][i] = gated(sums[j][i] * scale, sums[j + 8][i] * scale);
        }
    }
    store_rows(sums, 0, [&](int i, int) {
        return row + i < rows ? hidden + size_t(row + i) * FFN + column : nullptr;
    });
}

// ---- x ← x + h · product

// A block takes 64 columns of 64 tokens: larger tiles would leave multiprocessors without work.
// `target(token)` is the row where the new x goes, or null.
template <int INPUTS, typename Tile, typename Target>
__device__ __forceinline__ void add_product(const Maps& maps, float step_size,
    const float* norm, const RESIDUAL* x, bfloat16* scaled, float* squares, int rows,
    const Target& target) {
    const int lane = threadIdx.x % 32, column = blockIdx.x * 64, tile = blockIdx.y * Tile::ROWS;
    const int first = tile + threadIdx.x / 32 * 16, row = first + lane / 4;
    const int own = column + lane % 4 * 2;
    let_next_start();
    float sums[8][4];
    float2 before[8][2], weight[8];
    multiply<INPUTS, Tile>(sums, maps, tile, column, 0, [&] {
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (norm) weight[j] = load_two(norm + own + 8 * j);
        wait_for_previous();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const RESIDUAL* from = x + size_t(min(row + 8 * half, rows - 1)) * DIM + own;
#pragma unroll
            for (int j = 0; j < 8; ++j) before[j][half] = load_two(from + 8 * j);
        }
    });
    if (!Tile::computes()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = row + 8 * half;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 old = before[j][half];
            float &left = sums[j][2 * half], &right = sums[j][2 * half + 1];
            const float2 after = rounded(
                make_float2(fmaf(step_size, left, old.x), fmaf(step_size, right, old.y)), x);
            left = after.x, right = after.y;
            sum = fmaf(left, left, fmaf(right, right, sum));
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (token < rows && lane % 4 == 0)
            squares[size_t(token) * (DIM / CHUNK) + column / CHUNK] = sum;
    }
    store_rows(sums, Tile::STAGE, [&](int i, int) {
        RESIDUAL* to = first + i < rows ? target(first + i) : nullptr;
        return to ? to + column : nullptr;
    });
    if (!norm) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j][i] *= i % 2 ? weight[j].y : weight[j].x;
    }
    store_rows(sums, 0, [&](int i, int) {
        return first + i < rows ? scaled + size_t(first + i) * DIM + column : nullptr;
    });
}

using OutputTile = Tile<1, 64, OUTPUT_STAGES, OUTPUT_BYTES>;
using DownTile = Tile<1, 64, DOWN_STAGES, DOWN_BYTES>;

extern "C" __global__ void __launch_bounds__(OutputTile::THREADS, 1)
    output(const __grid_constant__ Maps maps, float step_size, const float* norm, RESIDUAL* x,
        bfloat16* scaled, float* squares, int rows) {
    auto target = [=](int token) { return x + size_t(token) * DIM; };
    add_product<ATTENDED, OutputTile>(maps, step_size, norm, x, scaled, squares, rows, target);
}

extern "C" __global__ void __launch_bounds__(DownTile::THREADS, 1)
    down(const __grid_constant__ Maps maps, float step_size, const float* norm, RESIDUAL* last,
        RESIDUAL* x, bfloat16* scaled, float* squares, int rows, const int* lengths,
        const int* ends, int tokens) {
    auto target = [=](int token) {
        return last ? row_of_last(last, token, lengths, ends, tokens) : x + size_t(token) * DIM;
    };
    add_product<FFN, DownTile>(maps, step_size, norm, x, scaled, squares, rows, target);
}
