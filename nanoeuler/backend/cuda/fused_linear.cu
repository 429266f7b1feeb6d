// Matrix products whose results are worked on while they are still in registers (Hopper only). An
// epilogue does what would be a kernel of its own before or behind the product, with one more trip
// of the result through memory: EPILOGUE is Rope (epilogue_rope.cuh), Swiglu or SwigluBackward
// (epilogue_swiglu.cuh), Gelu or GeluBackward (epilogue_gelu.cuh). This file is the pipeline.
//
// in:  x (N, D) bfloat16, W (C, D) or in a backward pass (D, F); the epilogue's
// out: packed (N, C), out (N, F) and others, as the epilogue's file says
// bytes: x and W once; the epilogue's
//
// With FP8, x and W are e4m3, which their slots scale (fp8.cuh), and W is (F, D) in a backward
// pass: wgmma reads such numbers along the sum only. The matrix units keep 14 bits of such sums,
// which is next to nothing beside the 4 bits of their factors.
//
// A block computes tiles of 128 × 256 results, one after another. Two blocks, a cluster, take tiles
// one below the other; each fetches one half of the weights, for both. Of a block's three groups of
// four warps two compute, 64 rows each. In the third, one thread starts all loads (by the tensor
// copy engine, into a ring of four stages, up to a tile ahead), and one starts all stores. A stage
// of the ring holds 128 bytes of each row of x and of the weights, 48 KB. The parts of an epilogue
// use stages of that ring, too: for results on their way out and, in a backward pass, for packed on
// its way in, which thus arrives while the product is still being computed. Barriers in shared
// memory hand a stage on:
//
//   full     loaded, or given to the epilogue         loading thread → computing warps
//   written  results lie in the stage                 computing warps → storing thread
//   empty    nobody in the cluster needs it           computing warps or storing thread, of both
//                                                     blocks → loading thread
//
// Compiled with -D: EPILOGUE; FP8; ROTATED_HEAD; TILE_ROWS and TILE_COLUMNS of the product,
// RESULT_COLUMNS that they become (of `out`, or of `packed` when there is none), DEPTH of a stage,
// STAGES, BARRIERS of a stage, GROUP_ROWS of four warps, CLUSTER, THREADS and SHARED_BYTES of a
// block; HEAD_SIZE=64, UNIT=WGMMA and ROWS_IN_REGISTERS=0, with which matrix_units.cuh makes panels
// of 64 bfloat16 columns.
#include "matrix_units.cuh"
#include "tensor_copy.cuh"
#include "fp8.cuh"
#include "gelu.cuh"
#include "rotation.cuh"
#include "epilogue.cuh"
#include "epilogue_rope.cuh"
#include "epilogue_swiglu.cuh"
#include "epilogue_gelu.cuh"

using Epilogue = EPILOGUE;
constexpr int READS = Epilogue::READS, PANELS = Epilogue::PANELS;  // of a part of a tile
constexpr int QUANTIZED = Epilogue::QUANTIZED, TRANSPOSED = Epilogue::TRANSPOSED;
constexpr bool BACKWARD = READS > 0, GATE_AND_UP = Epilogue::GATE_AND_UP;
constexpr bool BEHIND = TRANSPOSED > 2;  // three panels lie behind the ring
constexpr int PARTS = BACKWARD ? 4 : 2, PART_COLUMNS = RESULT_COLUMNS / PARTS;
constexpr bool ALONG_ROWS = BACKWARD && !FP8;  // sums run along the rows of W
constexpr int SLICE = DEPTH * 128;  // bytes of 64 columns of such weights
constexpr int BARRIERS_AT = SHARED_BYTES - (STAGES * BARRIERS + 1) * 8;
constexpr int FULL = 0, EMPTY = 1, WRITTEN = 2;  // kinds of barriers of a stage
constexpr int STORED = 3;  // the one barrier after them: panels behind the ring have been stored
constexpr int COMPUTING_WARPS = TILE_ROWS / 16, LOADING_WARP = 8, STORING_WARP = 9;

static_assert(TILE_ROWS == 128 && TILE_COLUMNS == 256, "wgmma shape m64n256");
static_assert(DEPTH == (FP8 ? 128 : 64), "128 bytes of a row");
static_assert(GROUP_ROWS == 64 && CLUSTER == 2, "loader, storer: groups of 64 rows, block pairs");
static_assert(RESULT_COLUMNS == TILE_COLUMNS / (GATE_AND_UP && !BACKWARD ? 2 : 1), "of `out`");
static_assert(THREADS == (COMPUTING_WARPS + 4) * 32, "a third group loads and stores");
static_assert(BARRIERS_AT == BEHIND_RING + BEHIND * 3 * E4M3_PANEL,
    "SHARED_BYTES: the ring, e4m3 results, barriers");

// Where and how the arrays lie, for the copy engine: boxes of 64 columns.
struct Maps {
    Map x, weight, packed, out, quantized, across;
};

__device__ __forceinline__ unsigned barrier(int kind, int stage) {
    return address_of(BARRIERS_AT + (kind * STAGES + stage) * 8);
}

// ---- the product: x (64 × 256) = (add ? x : 0) + left · right

__device__ __forceinline__ void
multiply_step(Results& x, unsigned long long left, unsigned long long right, int add) {
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
        : "l"(left), "l"(right), "r"(add), "n"(ALONG_ROWS));
#endif
}

__device__ __forceinline__ void multiply_stage(Results& x, int stage, int group, int add) {
#pragma unroll
    for (int s = 0; s < 4; s++) {  // 32 bytes of each row
        unsigned long long left = descriptor(stage * STAGE + group * GROUP_ROWS * 128, s * 32, 16);
        unsigned long long right = ALONG_ROWS
                                       ? descriptor(stage * STAGE + PANEL, s * 16 * 128, SLICE)
                                       : descriptor(stage * STAGE + PANEL, s * 32, 16);
        multiply_step(x, left, right, add | s);
    }
}

// ---- a part of a tile

// Where panels of e4m3 lie, and transposed ones: behind the others of the stage, or the ring.
__device__ __forceinline__ int quantized_at(int stage, int i) {
    return (BEHIND ? BEHIND_RING : stage + 2 * PANEL) + i * E4M3_PANEL;
}
__device__ __forceinline__ int transposed_at(int stage, int i) {
    return i == 2 ? BEHIND_RING + i * E4M3_PANEL : stage + READS * PANEL + i * E4M3_PANEL;
}

// Computing warps: results → panels.
__device__ __forceinline__ void
write_part(const Epilogue& epilogue, const Results& x, int part, int stage, Thread& thread) {
    unsigned packed[4][2][4];
    // all at once, so that no result waits for the next number to arrive
#pragma unroll
    for (int j = 0; j < 8; j += 2)
#pragma unroll
        for (int i = READS - 1; i >= 0; i--)
            load_matrices(packed[j / 2][i], thread.at(stage + i * PANEL, j));
    E4m3Panel quantized[2], transposed[3];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        Words words;
#pragma unroll
        for (int i = 0; i < 4; i++)
            epilogue.compute(
                words, i, x, part * (PART_COLUMNS / 8) + j + i / 2, packed[j / 2], thread);
#pragma unroll
        for (int i = 0; i < PANELS; i++) store_matrices(thread.at(stage + i * PANEL, j), words[i]);
        // free once the results of the part before have left
        if (BEHIND && j == 2) await(barrier(STORED, 0), (part + 1) & 1);
#pragma unroll
        for (int i = 0; i < QUANTIZED; i++)
            quantized[i].write(quantized_at(stage, i), thread, j, words[PANELS + i]);
#pragma unroll
        for (int i = 0; i < TRANSPOSED; i++)
            transposed[i].write_transposed(transposed_at(stage, i), thread, j, words[PANELS + i]);
    }
}

// Storing thread: panels → arrays.
__device__ __forceinline__ void
store_part(const Maps& maps, int stage, int row, int column, int up) {
    const int next = GATE_AND_UP ? up : 64;
    for (int group = 0; group < 2; group++) {
        const int offset = group * GROUP_ROWS * 128, target = row + group * GROUP_ROWS;
        for (int i = 0; i < PANELS; i++)
            store_box(i < 2 ? maps.packed : maps.out, stage + offset + i * PANEL,
                column + i % 2 * next, target);
        for (int i = 0; i < QUANTIZED; i++)
            store_box(BACKWARD ? maps.quantized : maps.out, quantized_at(stage, i) + offset / 2,
                column + i * next, target);
    }
    for (int i = 0; i < TRANSPOSED; i++)
        store_box(i < TRANSPOSED - 1 ? maps.across : maps.out, transposed_at(stage, i), row,
            column + (i < TRANSPOSED - 1 ? i * next : 0));
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    fused_linear(const __grid_constant__ Maps maps, int rows, int depth, int columns, int up,
        float scale, const int* positions, const float* cosine, const float* sine,
        int rotated_columns, const unsigned* bias, const Slot* x_slot, const Slot* weight_slot,
        Slot* to, Slot* to_out) {
    const Arguments given = {rows, rotated_columns, positions, cosine, sine, bias};
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(barrier(FULL, stage), 1);
            init_barrier(barrier(EMPTY, stage), 2 * COMPUTING_WARPS);
            init_barrier(barrier(WRITTEN, stage), COMPUTING_WARPS);
        }
        if (BEHIND) init_barrier(barrier(STORED, 0), 1);
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
                    await(barrier(EMPTY, stage), (lap + 1) & 1);
                    expect_barrier(full, STAGE);
                    load_box(maps.x, at, step * DEPTH, row, full);
                    if (ALONG_ROWS) {
                        for (int i = 2 * rank; i < 2 * rank + 2; i++)
                            load_box_for_both(maps.weight, at + PANEL + i * SLICE, column + i * 64,
                                step * DEPTH, full);
                    } else {
                        load_box_for_both(maps.weight, at + PANEL + rank * PANEL, step * DEPTH,
                            column + rank * (GATE_AND_UP && !BACKWARD ? up : TILE_ROWS), full);
                    }
                }
                for (int part = 0; part < PARTS; part++, next()) {
                    unsigned full = barrier(FULL, stage);
                    await(barrier(EMPTY, stage), (lap + 1) & 1);
                    if (!BACKWARD) {
                        arrive(full);
                        continue;
                    }
                    expect_barrier(full, READS * PANEL);
                    for (int i = 0; i < 2 * READS; i++)  // gate, then up, 64 rows at a time
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
                for (int part = 0; part < PARTS; part++, next()) {
                    await(barrier(WRITTEN, stage), (phases >> stage) & 1);
                    phases ^= 1u << stage;
                    store_part(maps, stage * STAGE, row, column + part * PART_COLUMNS, up);
                    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::
                            : "memory");
                    if (BEHIND) arrive(barrier(STORED, 0));
                    for (int block = 0; block < 2; block++)
                        arrive_in(block, barrier(EMPTY, stage), COMPUTING_WARPS);
                }
            }
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int group = warp / 4, own = warp * 16 + lane % 16,
            first = warp * 16 + lane / 4;  // of the lane's two rows of a tile, which lie 8 apart
        Results x;
        Thread thread = {warp, lane, own, own * 128 + ((own ^ lane / 16) & 7) * 16, scale};
        if (FP8) {
            thread.factor *= x_slot->inverse * weight_slot->inverse;
            if (QUANTIZED) thread.scale[0] = to->scale;
            if (TRANSPOSED) thread.scale[1] = to_out->scale;
        }
        for (int tile = blockIdx.x / 2; tile < tiles; tile += gridDim.x / 2) {
            int row = (tile / across * 2 + rank) * TILE_ROWS + first,
                column = tile % across * RESULT_COLUMNS;
            Epilogue epilogue;
            if (Epilogue::EARLY) epilogue.fetch(given, row, column, lane);
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

            if (!Epilogue::EARLY) epilogue.fetch(given, row, column, lane);
            epilogue.finish(x, given, column);
#pragma unroll
            for (int part = 0; part < PARTS; part++, next()) {
                await(barrier(FULL, stage), lap & 1);
                write_part(epilogue, x, part, stage * STAGE, thread);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) arrive(barrier(WRITTEN, stage));
            }
        }
        if (QUANTIZED) note_largest(to, thread.top[0]);
        if (TRANSPOSED) note_largest(to_out, thread.top[1]);
    }
    __syncwarp();
    meet_cluster();  // no block leaves while the other may still write to its barriers
}
