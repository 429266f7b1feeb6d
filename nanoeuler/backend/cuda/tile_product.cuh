// The product of a tile of tokens with rows of a weight on Hopper, for kernels that take what is in
// front of it and behind it along. A group of four warps computes 64 tokens. One thread more loads
// boxes by the copy engine into a ring of stages, the first weights before the kernel in front has
// ended (overlap.cuh).
#include "matrix_units.cuh"
#include "tensor_copy.cuh"
#include "overlap.cuh"

constexpr int DEPTH = 64;  // inputs of a stage: 128 bytes
constexpr int BOX = 64 * 128;  // bytes of so many of 64 tokens or of 64 rows of a weight

struct Maps {
    Map left, weight;
};

// The tile of a block: 64 tokens for each of GROUPS times four warps, and COLUMNS results. A stage
// of its ring has a box for every 64 of either. Weights of AHEAD stages come before the kernel in
// front has ended: all, where blocks start early enough to wait for it; else they would only delay
// the first tokens.
template <int GROUPS_, int COLUMNS_, int STAGES_, int BYTES, int AHEAD_ = STAGES_>
struct Tile {
    static constexpr int GROUPS = GROUPS_, COLUMNS = COLUMNS_, STAGES = STAGES_, AHEAD = AHEAD_;
    static constexpr int ROWS = 64 * GROUPS, WARPS = 4 * GROUPS, THREADS = 32 * WARPS + 32;
    static constexpr int LEFT = GROUPS * BOX, STAGE = LEFT + COLUMNS / 64 * BOX;
    static constexpr int BARRIERS = STAGES * STAGE;
    static_assert(BARRIERS + 16 * STAGES == BYTES, "stages, barriers");

    __device__ static unsigned full(int stage) { return address_of(BARRIERS + stage * 8); }
    __device__ static unsigned empty(int stage) {
        return address_of(BARRIERS + (STAGES + stage) * 8);
    }
    __device__ static bool computes() { return threadIdx.x < 32 * WARPS; }
};

// sums (16 rows of ROWS × COLUMNS in each computing warp) = tokens from `row` on · 64 rows of the
// weight from `first` on and, behind them, 64 from `second` on; over INPUTS. To be called by every
// thread; computing warps call `prepare` while they wait for the first stage.
//
// A step of the narrow tiles takes some 200 cycles, so that addresses to be computed in each would
// show: loops are unrolled over the stages, whose addresses are then known.
template <int INPUTS, typename Tile, typename Prepare>
__device__ __forceinline__ void multiply(float (&sums)[Tile::COLUMNS / 8][4], const Maps& maps,
    int row, int first, int second, const Prepare& prepare) {
    constexpr int STAGES = Tile::STAGES, STEPS = INPUTS / DEPTH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(Tile::full(stage), 1);
            init_barrier(Tile::empty(stage), Tile::WARPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (!Tile::computes()) {
        if (lane > 0) return;
        auto load_weight = [&](int stage, int step) {
            const int at = stage * Tile::STAGE + Tile::LEFT;
            expect_barrier(Tile::full(stage), Tile::STAGE);
            load_box(maps.weight, at, step * DEPTH, first, Tile::full(stage));
            if (Tile::COLUMNS > 64)
                load_box(maps.weight, at + BOX, step * DEPTH, second, Tile::full(stage));
        };
        auto load_left = [&](int stage, int step) {
#pragma unroll
            for (int group = 0; group < Tile::GROUPS; ++group)
                load_box(maps.left, stage * Tile::STAGE + group * BOX, step * DEPTH,
                    row + 64 * group, Tile::full(stage));
        };
#pragma unroll
        for (int step = 0; step < min(STEPS, Tile::AHEAD); ++step) load_weight(step, step);
        wait_for_previous();
#pragma unroll
        for (int step = 0; step < min(STEPS, STAGES); ++step) {
            if (step >= Tile::AHEAD) load_weight(step, step);
            load_left(step, step);
        }
#pragma unroll 1
        for (int begin = STAGES, phase = 0; begin < STEPS; begin += STAGES, phase ^= 1) {
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                if (STEPS % STAGES && begin + stage >= STEPS) break;
                await(Tile::empty(stage), phase);
                load_weight(stage, begin + stage);
                load_left(stage, begin + stage);
            }
        }
        return;
    }
    prepare();
    auto free = [&](int stage) {
        if (lane == 0) arrive(Tile::empty(stage));
    };
#pragma unroll 1
    for (int begin = 0, phase = 0; begin < STEPS; begin += STAGES, phase ^= 1) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            if (STEPS % STAGES && begin + stage >= STEPS) break;
            const int at = stage * Tile::STAGE;
            await(Tile::full(stage), phase);
            pin(sums);
            begin_products();
#pragma unroll
            for (int s = 0; s < DEPTH / 16; ++s)
                wgmma(sums, descriptor(at + warp / 4 * BOX, s * 32, 16),
                    descriptor(at + Tile::LEFT, s * 32, 16), begin | stage | s);
            commit_products();
            if (begin + stage > 0) {
                await_products<1>();
                free((stage + STAGES - 1) % STAGES);
            }
        }
    }
    await_products<0>();
    pin(sums);
}

constexpr int STORED = 4;  // rows of a warp that a lane writes an eighth of
__device__ __forceinline__ int stored_row(int k) { return threadIdx.x % 32 / 8 + 4 * k; }

// Writes this warp's 16 rows of 64 results; `target(i, k)` is where row i goes, the k-th of this
// lane's, or null. Those in bfloat16 go by way of a panel, so that whole rows go out. There they
// overwrite the warp's own rows of the left factor, which no other warp's products read: others may
// still be at the last.
template <typename Target>
__device__ __forceinline__ void
store_rows(const float (*x)[4], int panel, const Target& target) {
    const int lane = threadIdx.x % 32, own = panel + threadIdx.x / 32 * (16 * 128);
    if constexpr (sizeof(*target(0, 0)) == 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            auto* to = target(lane / 4 + 8 * half, half);
            if (!to) continue;
#pragma unroll
            for (int j = 0; j < 8; ++j)
                *reinterpret_cast<float2*>(to + 8 * j + lane % 4 * 2) =
                    make_float2(x[j][2 * half], x[j][2 * half + 1]);
        }
        return;
    }
    auto chunk_at = [&](int row, int chunk) { return own + row * 128 + ((chunk ^ row) & 7) * 16; };
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const unsigned words[4] = {pack_bf16(x[j][0], x[j][1]), pack_bf16(x[j][2], x[j][3]),
            pack_bf16(x[j + 1][0], x[j + 1][1]), pack_bf16(x[j + 1][2], x[j + 1][3])};
        store_matrices(chunk_at(lane % 16, j + lane / 16), words);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < STORED; ++k) {
        const int row = stored_row(k), chunk = lane % 8;
        auto* to = target(row, k);
        if (to)
            *reinterpret_cast<uint4*>(to + chunk * 8) =
                *reinterpret_cast<const uint4*>(shared + chunk_at(row, chunk));
    }
}
