// Matrix products whose results are worked on while they are still in registers (Hopper only). The
// epilogue does what would be a kernel of its own before or behind the product, with one more trip
// of the result through memory. KIND says which:
//
//   ROTATED         packed = x Wᵀ, its first `rotated_columns` columns rotated by their positions
//                   (rope.cu)
//   GATED           gate and up = x Wᵀ, and out = silu(gate) · up (swiglu.cu)
//   GATED_BACKWARD  dhidden = scale · x W, which is never stored: gate and up become their
//                   gradients, and out is silu(gate) · up again (swiglu.cu)
//   GELU            packed = x Wᵀ + bias, and out = gelu(packed) (gelu.cuh)
//   GELU_BACKWARD   dhidden = scale · x W, which is never stored: out is gelu(packed) again
//
// in:  x (N, D) bfloat16; W (C, D), or (D, F) in a backward pass; positions (N) int, cosine and
//      sine (positions, E / 2) float for ROTATED; bias (C) bfloat16 for GELU; packed in a backward
//      pass. Gate and up are columns of packed, `up` columns apart, as are the rows of W from which
//      GATED makes them
// out: packed (N, C) bfloat16: q, k and v, gate and up, or what GELU is taken of;  out (N, F)
//      bfloat16, not for ROTATED
// bytes: x and W once; packed once, or twice in a backward pass; out once
//
// With FP8, x and W are e4m3, which their slots scale (fp8.cuh), and W is (F, D) in a backward
// pass: wgmma reads such numbers along the sum only. `out` of a forward pass is e4m3 by the scale
// of the slot `to`. So are all results of a backward pass: the gradient of packed as `quantized`
// (N, C), the same as `across` (C, N), and `out` as (F, N), by a slot of its own; packed is only
// read. In `across` and `out` the tokens lie as fp8.cuh says; bytes: N · (D + 4 C + F). The matrix
// units keep 14 bits of such sums, which is next to nothing beside the 4 bits of their factors.
// GELU is made for FP8 alone: in bfloat16 cuBLASLt is as fast.
//
// A block computes tiles of 128 × 256 results, one after another. Two blocks, a cluster, take tiles
// one below the other; each fetches one half of the weights, for both. Of a block's three groups of
// four warps two compute, 64 rows each. In the third, one thread starts all loads (by the tensor
// copy engine, into a ring of four stages, up to a tile ahead), and one starts all stores. A stage
// of the ring holds 128 bytes of each row of x and of the weights, 48 KB. An epilogue uses stages
// of that ring, too: for results on their way out and, in a backward pass, for packed on its way
// in, which thus arrives while the product is still being computed. Barriers in shared memory
// hand a stage on:
//
//   full     loaded, or given to the epilogue         loading thread → computing warps
//   written  results lie in the stage                 computing warps → storing thread
//   empty    nobody in the cluster needs it           computing warps or storing thread, of both
//                                                     blocks → loading thread
//
// Compiled with -D: KIND; FP8; ROTATED_HEAD, the head size E for ROTATED; TILE_ROWS and
// TILE_COLUMNS of the product, RESULT_COLUMNS that they become (of `out`, or of `packed` when there
// is none), DEPTH of a stage, STAGES, BARRIERS of a stage, GROUP_ROWS of four warps, CLUSTER,
// THREADS and SHARED_BYTES of a block; HEAD_SIZE=64, UNIT=WGMMA and ROWS_IN_REGISTERS=0, with which
// matrix_units.cuh makes panels of 64 bfloat16 columns.
#include "matrix_units.cuh"
#include "tensor_copy.cuh"
#include "fp8.cuh"
#include "gelu.cuh"
#include "rotation.cuh"

#define ROTATED 1
#define GATED 2
#define GATED_BACKWARD 3
#define GELU 4
#define GELU_BACKWARD 5

constexpr int PANEL = TILE_ROWS * 128;  // bytes of 64 columns of a tile
constexpr int STAGE = PANEL + TILE_COLUMNS * 128;  // bytes of a stage: x, then the weights
constexpr bool IS_GATED = KIND == GATED || KIND == GATED_BACKWARD;
constexpr bool IS_BACKWARD = KIND == GATED_BACKWARD || KIND == GELU_BACKWARD;
constexpr int SLICE = DEPTH * 128;  // bytes of 64 columns of GATED_BACKWARD's weights
constexpr bool ALONG_ROWS = KIND == GATED_BACKWARD && !FP8;  // sums run along the rows of W
constexpr int QUANTIZED = STAGES * STAGE;  // where e4m3 results lie that no stage has room for
constexpr int QUANTIZED_PANEL = TILE_ROWS * 64;  // bytes of 64 such columns of a tile
constexpr int QUANTIZED_PANELS = FP8 && KIND == GATED_BACKWARD ? 3 : 0;
constexpr int BARRIER_BYTES = QUANTIZED + QUANTIZED_PANELS * QUANTIZED_PANEL;  // where they start
constexpr int FULL = 0, EMPTY = 1, WRITTEN = 2;  // kinds of barriers of a stage
constexpr int STORED = 3;  // the kind after them, of those panels: they have been stored
constexpr int COMPUTING_WARPS = TILE_ROWS / 16, LOADING_WARP = 8, STORING_WARP = 9;
constexpr int EPILOGUE_STAGES = IS_BACKWARD ? 4 : 2;
constexpr int READ_PANELS = IS_GATED ? 2 : 1;  // of packed, in a backward pass
constexpr int BFLOAT16_PANELS = FP8 && IS_BACKWARD ? 0 : FP8 || KIND == ROTATED ? 2 : 3;  // results
constexpr int E4M3_PANELS = !FP8 || KIND == ROTATED                 ? 0
                            : KIND == GATED || KIND == GELU_BACKWARD ? 1
                                                                     : 2;
constexpr int TRANSPOSED_PANELS = FP8 && IS_BACKWARD ? READ_PANELS + 1 : 0;  // of e4m3
constexpr int TRANSPOSED = IS_GATED ? 2 * PANEL : PANEL;  // where two of them lie in a stage

static_assert(TILE_ROWS == 128 && TILE_COLUMNS == 256, "wgmma shape m64n256");
static_assert(DEPTH == (FP8 ? 128 : 64), "128 bytes of a row");
static_assert(GROUP_ROWS == 64 && CLUSTER == 2, "loader, storer: groups of 64 rows, block pairs");
static_assert(FP8 || KIND < GELU, "GELU is made for e4m3 alone");
static_assert(RESULT_COLUMNS == (KIND == GATED ? TILE_COLUMNS / 2 : TILE_COLUMNS), "of `out`");
static_assert(THREADS == (COMPUTING_WARPS + 4) * 32, "a third group loads and stores");
static_assert(SHARED_BYTES == BARRIER_BYTES + (STAGES * BARRIERS + (QUANTIZED_PANELS > 0)) * 8,
    "the ring, e4m3 results, barriers");

// Where and how the arrays lie, for the copy engine: boxes of 64 columns.
struct Maps {
    Map x, weight, packed, out, quantized, across;
};

// ---- barriers

__device__ __forceinline__ unsigned barrier(int kind, int stage) {
    return address_of(BARRIER_BYTES + (kind * STAGES + stage) * 8);
}

// ---- the product: x (64 × 256) = (add ? x : 0) + left · right

#define D_256                                                                                      \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31,"                                                                  \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
    "%55,%56,%57,%58,%59,%60,%61,%62,%63,"                                                         \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86," \
    "%87,%88,%89,%90,%91,%92,%93,%94,%95,"                                                         \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%" \
    "115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"

__device__ __forceinline__ void multiply_step(
    float (&x)[TILE_COLUMNS / 8][4], unsigned long long left, unsigned long long right, int add) {
#if FP8
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " D_256 ", %128, %129, p, 1, 1;}"
        : FOUR_8(x, 0), FOUR_8(x, 8), FOUR_8(x, 16), FOUR_8(x, 24)
        : "l"(left), "l"(right), "r"(add));
#else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " D_256
        ", %128, %129, p, 1, 1, 0, %131;}"
        : FOUR_8(x, 0), FOUR_8(x, 8), FOUR_8(x, 16), FOUR_8(x, 24)
        : "l"(left), "l"(right), "r"(add), "n"(KIND == GATED_BACKWARD));
#endif
}

__device__ __forceinline__ void
multiply_stage(float (&x)[TILE_COLUMNS / 8][4], int stage, int group, int add) {
#pragma unroll
    for (int s = 0; s < 4; s++) {  // 32 bytes of each row
        unsigned long long left = descriptor(stage * STAGE + group * GROUP_ROWS * 128, s * 32, 16);
        unsigned long long right = ALONG_ROWS
                                       ? descriptor(stage * STAGE + PANEL, s * 16 * 128, SLICE)
                                       : descriptor(stage * STAGE + PANEL, s * 32, 16);
        multiply_step(x, left, right, add | s);
    }
}

// ---- e4m3

// Of the results of two neighbouring blocks of 8 columns, the four in columns 4 (lane % 4) and
// following of these 16, where lanes hold two each in columns 2 (lane % 4).
__device__ __forceinline__ unsigned e4m3_four(unsigned pair, unsigned next_pair) {
    const unsigned lane = threadIdx.x % 32, both = pair | next_pair << 16,
                   from = lane & ~3u | 2 * lane & 3u;
    const unsigned low = __shfl_sync(~0u, both, from), high = __shfl_sync(~0u, both, from + 1);
    return __byte_perm(low, high, lane & 2 ? 0x7632 : 0x5410);
}

// Where 16 e4m3 columns of a row lie in a panel of 64, as the copy engine's 64-byte swizzle has it.
__device__ __forceinline__ int quantized_chunk(int row, int chunk) {
    return row * 64 + ((chunk ^ row / 2) & 3) * 16;
}

// ---- SwiGLU

// Computed from the rounded numbers, as the backward pass will see them.
__device__ __forceinline__ unsigned gated_pair(unsigned gate, unsigned up) {
    float2 z = unpack_bf16(gate), factor = unpack_bf16(up);
    return pack_bf16(gated(z.x, factor.x), gated(z.y, factor.y));
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    fused_linear(const __grid_constant__ Maps maps, int rows, int depth, int columns, int up,
        float scale, const int* positions, const float* cosine, const float* sine,
        int rotated_columns, const unsigned* bias, const Slot* x_slot, const Slot* weight_slot,
        Slot* to, Slot* to_out) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(barrier(FULL, stage), 1);
            init_barrier(barrier(EMPTY, stage), 2 * COMPUTING_WARPS);
            init_barrier(barrier(WRITTEN, stage), COMPUTING_WARPS);
        }
        if (QUANTIZED_PANELS) init_barrier(barrier(STORED, 0), 1);
        publish_barriers();
    }
    meet_cluster();

    // Every role takes the same tiles and the same stages in turn; `lap` counts the rounds of the
    // ring.
    int across = (columns + RESULT_COLUMNS - 1) / RESULT_COLUMNS,
        tiles = (rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS) * across;
    int steps = (depth + DEPTH - 1) / DEPTH, stage = 0, lap = 0;
    auto next = [&]() {
        if (++stage == STAGES) stage = 0, lap++;
    };

    if (warp >= COMPUTING_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == LOADING_WARP && lane == 0) {
            for (int tile = blockIdx.x / 2; tile < tiles; tile += gridDim.x / 2) {
                int row = (tile / across * 2 + rank) * TILE_ROWS,
                    column = tile % across * RESULT_COLUMNS;
                for (int step = 0; step < steps; step++, next()) {
                    unsigned full = barrier(FULL, stage);
                    int at = stage * STAGE;
                    await(barrier(EMPTY, stage), lap + 1 & 1);
                    expect_barrier(full, STAGE);
                    load_box(maps.x, at, step * DEPTH, row, full);
                    if (ALONG_ROWS) {
                        for (int i = 2 * rank; i < 2 * rank + 2; i++)
                            load_box_for_both(maps.weight, at + PANEL + i * SLICE, column + i * 64,
                                step * DEPTH, full);
                    } else {
                        load_box_for_both(maps.weight, at + PANEL + rank * PANEL, step * DEPTH,
                            column + rank * (KIND == GATED ? up : TILE_ROWS), full);
                    }
                }
                for (int part = 0; part < EPILOGUE_STAGES; part++, next()) {
                    unsigned full = barrier(FULL, stage);
                    await(barrier(EMPTY, stage), lap + 1 & 1);
                    if (!IS_BACKWARD) {
                        arrive(full);
                        continue;
                    }
                    expect_barrier(full, READ_PANELS * PANEL);
                    for (int i = 0; i < 2 * READ_PANELS; i++)  // gate, then up, 64 rows at a time
                        load_box(maps.packed, stage * STAGE + i * PANEL / 2,
                            column + part * 64 + i / 2 * up, row + i % 2 * GROUP_ROWS, full);
                }
            }
        } else if (warp == STORING_WARP && lane == 0) {
            unsigned phases = 0;  // an epilogue does not use every stage in every lap
            for (int tile = blockIdx.x / 2; tile < tiles; tile += gridDim.x / 2) {
                int row = (tile / across * 2 + rank) * TILE_ROWS,
                    column = tile % across * RESULT_COLUMNS;
                stage = (stage + steps) % STAGES;
                for (int part = 0; part < EPILOGUE_STAGES; part++, next()) {
                    await(barrier(WRITTEN, stage), phases >> stage & 1);
                    phases ^= 1u << stage;
                    for (int group = 0; group < 2; group++) {
                        int from = stage * STAGE + group * GROUP_ROWS * 128,
                            quantized = (QUANTIZED_PANELS ? QUANTIZED : stage * STAGE + 2 * PANEL) +
                                        group * GROUP_ROWS * 64,
                            target = row + group * GROUP_ROWS;
                        if (FP8 && IS_BACKWARD) {
                            for (int i = 0; i < E4M3_PANELS; i++)
                                store_box(maps.quantized, quantized + i * QUANTIZED_PANEL,
                                    column + part * 64 + i * up, target);
                        } else if (!IS_GATED) {
                            for (int i = 0; i < 2; i++) {
                                int at = column + part * 128 + i * 64;
                                store_box(maps.packed, from + i * PANEL, at, target);
                                if (KIND == GELU)
                                    store_box(
                                        maps.out, quantized + i * QUANTIZED_PANEL, at, target);
                            }
                        } else {
                            store_box(maps.packed, from, column + part * 64, target);
                            store_box(maps.packed, from + PANEL, column + part * 64 + up, target);
                            store_box(maps.out, FP8 ? quantized : from + 2 * PANEL,
                                column + part * 64, target);
                        }
                    }
                    if (TRANSPOSED_PANELS) {
                        for (int i = 0; i < READ_PANELS; i++)
                            store_box(maps.across, stage * STAGE + TRANSPOSED + i * QUANTIZED_PANEL,
                                row, column + part * 64 + i * up);
                        store_box(maps.out,
                            IS_GATED ? QUANTIZED + 2 * QUANTIZED_PANEL
                                     : stage * STAGE + TRANSPOSED + QUANTIZED_PANEL,
                            row, column + part * 64);
                    }
                    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::
                            : "memory");
                    if (QUANTIZED_PANELS) arrive(barrier(STORED, 0));
                    for (int block = 0; block < 2; block++)
                        arrive_in(block, barrier(EMPTY, stage), COMPUTING_WARPS);
                }
            }
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int group = warp / 4,
            first = warp * 16 + lane / 4;  // of the lane's two rows of a tile, which lie 8 apart
        float x[TILE_COLUMNS / 8][4];
        // Where this lane reads or writes a row of its warp's part of a panel: blocks j and j + 1,
        // rows 0 to 7 and 8 to 15 of each.
        int own = warp * 16 + lane % 16, corner = own * 128 + ((own ^ lane / 16) & 7) * 16;
        auto chunk_at = [&](int panel, int j) {
            return stage * STAGE + panel * PANEL + (corner ^ j * 16);
        };
        [[maybe_unused]] float factor = scale, to_scale = 0, out_scale = 0, top = 0, out_top = 0;
        if (FP8) {
            factor *= x_slot->inverse * weight_slot->inverse;
            if (KIND != ROTATED) to_scale = to->scale;
            if (IS_BACKWARD) out_scale = to_out->scale;
        }
        auto packed = [&](int block, int half) {
            float low = x[block][2 * half], high = x[block][2 * half + 1];
            return FP8 ? pack_bf16(factor * low, factor * high) : pack_bf16(low, high);
        };
        auto quantized = [&](float low, float high, float scale, float& top) {
            top = larger(larger(top, low), high);
            return e4m3_pair(scale, low, high);
        };
        auto publish = [&]() {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) arrive(barrier(WRITTEN, stage));
            next();
        };
        for (int tile = blockIdx.x / 2; tile < tiles; tile += gridDim.x / 2) {
            constexpr int BLOCKS = ROTATED_HEAD / 8, HALF = ROTATED_HEAD / 2;
            [[maybe_unused]] float2 cos[2][BLOCKS / 2], sin[2][BLOCKS / 2];
            [[maybe_unused]] int row = (tile / across * 2 + rank) * TILE_ROWS + first,
                                 column = tile % across * RESULT_COLUMNS;
            auto fetch_angles = [&]() {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    size_t angle =
                        size_t(positions[min(row + 8 * half, rows - 1)]) * HALF + lane % 4 * 2;
#pragma unroll
                    for (int j = 0; j < BLOCKS / 2; j++) {
                        cos[half][j] = *reinterpret_cast<const float2*>(cosine + angle + 8 * j);
                        sin[half][j] = *reinterpret_cast<const float2*>(sine + angle + 8 * j);
                    }
                }
            };
            constexpr bool EARLY =
                KIND == ROTATED &&
                ROTATED_HEAD <=
                    64;  // loaded while the product is computed, where registers suffice
            if (EARLY && column < rotated_columns) fetch_angles();
            [[maybe_unused]] unsigned biases[TILE_COLUMNS / 8];  // this lane's, in pairs
            if constexpr (KIND == GELU)
#pragma unroll
                for (int block = 0; block < TILE_COLUMNS / 8; block++)
                    biases[block] = bias[column / 2 + block * 4 + lane % 4];
            for (int step = 0; step < steps; step++, next()) {
                await(barrier(FULL, stage), lap & 1);
                begin_products();
                multiply_stage(x, stage, group, step);
                commit_products();
                if (step > 0) {  // the stage before this one has been read
                    await_products<1>();
                    if (lane < 2) arrive_in(lane, barrier(EMPTY, (stage + STAGES - 1) % STAGES), 1);
                }
            }
            await_products<0>();
            pin(x);
            if (lane < 2) arrive_in(lane, barrier(EMPTY, (stage + STAGES - 1) % STAGES), 1);

            if (KIND == ROTATED && column < rotated_columns) {
                if (!EARLY) fetch_angles();
#pragma unroll
                for (int head = 0; head < TILE_COLUMNS / ROTATED_HEAD; head++) {
                    if (column + head * ROTATED_HEAD >= rotated_columns) break;
#pragma unroll
                    for (int j = 0; j < BLOCKS / 2; j++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float c = i % 2 ? cos[i / 2][j].y : cos[i / 2][j].x;
                            float s = i % 2 ? sin[i / 2][j].y : sin[i / 2][j].x;
                            float& a = x[head * BLOCKS + j][i];
                            float& b = x[head * BLOCKS + BLOCKS / 2 + j][i];
                            float2 both = rotated(a, b, c, s);
                            a = both.x, b = both.y;
                        }
                    }
                }
            }
#pragma unroll
            for (int part = 0; part < EPILOGUE_STAGES; part++) {
                await(barrier(FULL, stage), lap & 1);
                [[maybe_unused]] unsigned fours[2][4], transposed[3][4];  // of e4m3, for each panel
                unsigned gates[4][4], ups[4][4];
                // all at once, so that no result waits for the next number to arrive
                if constexpr (IS_BACKWARD) {
#pragma unroll
                    for (int j = 0; j < 8; j += 2) {
                        load_matrices(ups[j / 2], chunk_at(IS_GATED, j));
                        if constexpr (IS_GATED) load_matrices(gates[j / 2], chunk_at(0, j));
                    }
                }
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    unsigned results[3][4];
                    [[maybe_unused]] unsigned pairs[3][4];  // of e4m3
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int block = j + i / 2, half = i % 2;
                        if constexpr (KIND == ROTATED) {
                            results[0][i] = packed(16 * part + block, half);
                            results[1][i] = packed(16 * part + 8 + block, half);
                        } else if constexpr (KIND == GATED) {
                            results[0][i] = packed(8 * part + block, half);
                            results[1][i] = packed(16 + 8 * part + block, half);
                            if constexpr (FP8) {
                                float2 z = unpack_bf16(results[0][i]),
                                       up = unpack_bf16(results[1][i]);
                                pairs[0][i] =
                                    quantized(gated(z.x, up.x), gated(z.y, up.y), to_scale, top);
                            } else {
                                results[2][i] = gated_pair(results[0][i], results[1][i]);
                            }
                        } else if constexpr (KIND == GELU) {
#pragma unroll
                            for (int panel = 0; panel < 2; panel++) {
                                int at = 16 * part + 8 * panel + block;
                                float2 constant = unpack_bf16(biases[at]);
                                results[panel][i] =
                                    pack_bf16(fmaf(factor, x[at][2 * half], constant.x),
                                        fmaf(factor, x[at][2 * half + 1], constant.y));
                                float2 z = unpack_bf16(results[panel][i]);
                                pairs[panel][i] = quantized(
                                    z.x * gelu_sigma(z.x), z.y * gelu_sigma(z.y), to_scale, top);
                            }
                        } else if constexpr (KIND == GELU_BACKWARD) {
                            float2 z = unpack_bf16(ups[j / 2][i]);
                            const float (&dout)[4] = x[8 * part + block];
                            GeluGradient low = gelu_gradient(factor * dout[2 * half], z.x),
                                         high = gelu_gradient(factor * dout[2 * half + 1], z.y);
                            pairs[0][i] = quantized(low.dx, high.dx, to_scale, top);
                            pairs[1][i] = quantized(low.out, high.out, out_scale, out_top);
                        } else {
                            float2 z = unpack_bf16(gates[j / 2][i]),
                                   up = unpack_bf16(ups[j / 2][i]);
                            const float (&dout)[4] = x[8 * part + block];
                            Gated low = gated_backward(factor * dout[2 * half], z.x, up.x);
                            Gated high = gated_backward(factor * dout[2 * half + 1], z.y, up.y);
                            if constexpr (FP8) {
                                pairs[0][i] = quantized(low.dgate, high.dgate, to_scale, top);
                                pairs[1][i] = quantized(low.dup, high.dup, to_scale, top);
                                pairs[2][i] = quantized(low.out, high.out, out_scale, out_top);
                            } else {
                                results[0][i] = pack_bf16(low.dgate, high.dgate);
                                results[1][i] = pack_bf16(low.dup, high.dup);
                                results[2][i] = pack_bf16(low.out, high.out);
                            }
                        }
                    }
#pragma unroll
                    for (int panel = 0; panel < BFLOAT16_PANELS; panel++)
                        store_matrices(chunk_at(panel, j), results[panel]);
                    // free once the results of the part before have left
                    if (QUANTIZED_PANELS && j == 2) await(barrier(STORED, 0), part + 1 & 1);
#pragma unroll
                    for (int panel = 0; panel < E4M3_PANELS; panel++) {
                        int at = (QUANTIZED_PANELS ? QUANTIZED : stage * STAGE + 2 * PANEL) +
                                 panel * QUANTIZED_PANEL;
#pragma unroll
                        for (int half = 0; half < 2; half++)
                            fours[panel][j % 4 + half] =
                                e4m3_four(pairs[panel][half], pairs[panel][2 + half]);
                        if (j % 4)  // two chunks together
                            store_matrices(
                                at + (quantized_chunk(own, lane / 16) ^ j / 4 * 32), fours[panel]);
                    }
#pragma unroll
                    for (int panel = 0; panel < TRANSPOSED_PANELS; panel++) {
                        int at = panel == 2 ? QUANTIZED + 2 * QUANTIZED_PANEL
                                            : stage * STAGE + TRANSPOSED + panel * QUANTIZED_PANEL;
#pragma unroll
                        for (int next = 0; next < 2; next++)  // of two blocks of columns
                            transposed[panel][j % 4 + next] = __byte_perm(
                                pairs[panel][2 * next], pairs[panel][2 * next + 1], 0x5140);
                        if (j % 4) {
                            int column = j / 4 * 32 + lane;
                            store_matrices_transposed(
                                at + column * 128 + ((warp ^ column) & 7) * 16, transposed[panel]);
                        }
                    }
                }
                publish();
            }
        }
        if (FP8 && KIND != ROTATED) note_largest(to, top);
        if (FP8 && IS_BACKWARD) note_largest(to_out, out_top);
    }
    __syncwarp();
    meet_cluster();  // no block leaves while the other may still write to its barriers
}
