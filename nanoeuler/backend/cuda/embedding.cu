// Embedding: out_n = table[ids_n], and backward: dtable[v] = Σ of dout_n over the n with ids_n = v,
// in a fixed order.
//
// In the backward pass each block has every 2^shift-th entry of the vocabulary, at most
// BLOCK_ENTRIES. It looks through the ids twice (the L2 holds them): first to count, then to list
// the rows where its entries occur, sorted by entry and row. A warp then adds up the rows of an
// entry, or all warps those of a frequent one. No atomics on floats: equal inputs give equal bits.
//
// A GPT-2 adds a learned embedding of the position. A Gemma scales what enters the stream: `scale`,
// in place, of the stream (RESIDUAL) or of its gradient (ACTIVATION).
//
// forward   in: ids (N) int, table (V, D) ACTIVATION    out: out (N, D) RESIDUAL
//           bytes: N · D · (activation + residual)
// backward  in: ids (N), dout (N, D) ACTIVATION
//           out: dtable (V, D) float; order (N) int is scratch memory
//           bytes: N · D · activation + V · D · 4 (when adding: only of the entries that occur,
//           twice), and 8 · N · 2^shift of the L2
//
// Compiled in: DIM, WARPS of a block (backward), THREADS of one (forward), BLOCK_ENTRIES.
#include "common.cuh"
#include "overlap.cuh"

constexpr int VECTORS = DIM / WIDTH;
constexpr int STEPS = (VECTORS + 31) / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding(const int* ids, const ACTIVATION* table, RESIDUAL* out, int rows) {
    let_next_start();
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row < rows)
        store(out + size_t(row) * DIM + column, load(table + size_t(ids[row]) * DIM + column));
}

// out = table[id] + position_table[position]; a position beyond its table takes the last row.
extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_at(const int* ids, const ACTIVATION* table, const int* positions,
        const ACTIVATION* position_table, int places, RESIDUAL* out, int rows) {
    let_next_start();
    const unsigned index = blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS,
                   column = index % VECTORS * WIDTH;
    if (row >= rows) return;
    const int place = min(positions[row], places - 1);
    Eight value = load(table + size_t(ids[row]) * DIM + column);
    const Eight other = load(position_table + size_t(place) * DIM + column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.at[i] += other.at[i];
    store(out + size_t(row) * DIM + column, value);
}

template <typename T>
__device__ __forceinline__ void scale_in_place(T* x, float factor, int rows) {
    const size_t at = (size_t(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (at >= size_t(rows) * DIM) return;
    Eight value = load(x + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.at[i] *= factor;
    store(x + at, value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_stream(RESIDUAL* x, float factor, int rows) {
    scale_in_place(x, factor, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_gradient(ACTIVATION* x, float factor, int rows) {
    scale_in_place(x, factor, rows);
}

constexpr int LOOKS = 8;  // ids that a lane reads together
constexpr int FREQUENT = 64;  // least number of rows that all warps add up together

struct Sum {
    Eight part[STEPS];

    __device__ __forceinline__ void
    add_rows(const ACTIVATION* dout, const int* rows, int count, int lane) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) part[s] = {};
#pragma unroll 4
        for (int n = 0; n < count; ++n)
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
                if (s * 32 + lane < VECTORS) {
                    const Eight value =
                        load(dout + size_t(rows[n]) * DIM + (s * 32 + lane) * WIDTH);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) part[s].at[i] += value.at[i];
                }
    }
};

// Calls look(ids, first) for LOOKS · 32 ids at a time. A lane has those at first, first + 32, …; −1
// beyond the end.
template <typename Look>
__device__ __forceinline__ void
look_through(const int* ids, int start, int stop, int lane, Look look) {
    for (; start < stop; start += 32 * LOOKS) {
        int id[LOOKS];
#pragma unroll
        for (int i = 0; i < LOOKS; ++i)
            id[i] = start + i * 32 + lane < stop ? ids[start + i * 32 + lane] : -1;
        look(id, start + lane);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    embedding_backward(const int* ids, const ACTIVATION* dout, float* dtable, int* order, int rows,
        int entries, int shift, int accumulate) {
    // at first how often a warp found an entry, then where in `order` it writes the next row
    __shared__ int next[WARPS][BLOCK_ENTRIES];
    __shared__ int first[BLOCK_ENTRIES + 1];  // of an entry's rows in `order`
    __shared__ int found_before[WARPS];
    __shared__ alignas(16) float sums[WARPS][DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.x,
              mask = (1 << shift) - 1;
    const int share = (rows + WARPS - 1) / WARPS, start = warp * share,
              stop = min(rows, start + share);
    for (int entry = threadIdx.x; entry < WARPS * BLOCK_ENTRIES; entry += WARPS * 32)
        next[0][entry] = 0;
    __syncthreads();

    int before = 0;  // number of ids that belong to blocks in front of this one
    look_through(ids, start, stop, lane, [&](const int (&id)[LOOKS], int) {
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            before += id[i] >= 0 && (id[i] & mask) < block;
            if (id[i] >= 0 && (id[i] & mask) == block) atomicAdd(&next[warp][id[i] >> shift], 1);
        }
    });
    before = warp_sum(before);
    if (lane == 0) found_before[warp] = before;
    __syncthreads();
    if (warp == 0) {
        int offset = 0;
        for (int w = 0; w < WARPS; ++w) offset += found_before[w];
        for (int entry = lane; entry < BLOCK_ENTRIES; entry += 32) {
            int count = 0;
            for (int w = 0; w < WARPS; ++w) count += next[w][entry];
            int upto = count;  // of the entries of this round, this one included
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const int other = __shfl_up_sync(WHOLE_WARP, upto, distance);
                if (lane >= distance) upto += other;
            }
            int at = offset + upto - count;
            first[entry] = at;
            for (int w = 0; w < WARPS; ++w) {
                const int found = next[w][entry];
                next[w][entry] = at;
                at += found;
            }
            offset += __shfl_sync(WHOLE_WARP, upto, 31);
        }
        if (lane == 0) first[BLOCK_ENTRIES] = offset;
    }
    __syncthreads();

    look_through(ids, start, stop, lane, [&](const int (&id)[LOOKS], int row) {
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            const bool mine = id[i] >= 0 && (id[i] & mask) == block;
            const unsigned found = __ballot_sync(WHOLE_WARP, mine);
            if (mine) {
                const unsigned same = __match_any_sync(found, id[i]);
                int* at = &next[warp][id[i] >> shift];
                order[*at + __popc(same & ((1u << lane) - 1))] = row + 32 * i;
                __syncwarp(found);
                if (__ffs(same) - 1 == lane) *at += __popc(same);
            }
            __syncwarp();
        }
    });
    __syncthreads();

    Sum sum;
    for (int e = 0; e < BLOCK_ENTRIES && block + (e << shift) < entries; ++e) {
        const int count = first[e + 1] - first[e];
        if (count < FREQUENT) continue;
        const int part = (count + WARPS - 1) / WARPS, from = min(count, warp * part);
        sum.add_rows(dout, order + first[e] + from, min(part, count - from), lane);
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (s * 32 + lane < VECTORS) store(&sums[warp][(s * 32 + lane) * WIDTH], sum.part[s]);
        __syncthreads();
        for (int column = threadIdx.x; column < DIM; column += WARPS * 32) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) total += sums[w][column];
            float* target = dtable + size_t(block + (e << shift)) * DIM + column;
            *target = accumulate ? *target + total : total;
        }
        __syncthreads();
    }
    for (int e = warp; e < BLOCK_ENTRIES && block + (e << shift) < entries; e += WARPS) {
        const int count = first[e + 1] - first[e];
        if (count >= FREQUENT || (count == 0 && accumulate)) continue;
        sum.add_rows(dout, order + first[e], count, lane);
        float* target = dtable + size_t(block + (e << shift)) * DIM;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (s * 32 + lane < VECTORS) {
                if (accumulate) {
                    const Eight old = load(target + (s * 32 + lane) * WIDTH);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sum.part[s].at[i] += old.at[i];
                }
                store(target + (s * 32 + lane) * WIDTH, sum.part[s]);
            }
    }
}
