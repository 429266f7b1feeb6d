// Embedding: out_n = table[ids_n], and backward: dtable[v] = Σ of dout_n over the n with ids_n = v, in a fixed order.
//
// DIM and the WARPS of a block are compiled in. The backward pass has one block for each entry of the vocabulary: it looks through all ids (the L2
// holds them), notes where its own stand, and its warps add those rows up. No atomics: equal inputs give equal bits.
//
// forward   in: ids (N) int, table (V, D) ACTIVATION    out: out (N, D) RESIDUAL         bytes: N · D · (activation + residual)
// backward  in: ids (N), dout (N, D) ACTIVATION         out: dtable (V, D) float         bytes: N · D · activation + V · D · 4 (twice when adding), V · N · 4 of the L2
#include "common.cuh"


constexpr int VECTORS = DIM / WIDTH;
constexpr int STEPS = (VECTORS + 31) / 32;

extern "C" __global__ void __launch_bounds__(256) embedding(const int* ids, const ACTIVATION* table, RESIDUAL* out, int rows) {
    const unsigned index = blockIdx.x * 256u + threadIdx.x, row = index / VECTORS, column = index % VECTORS * WIDTH;
    if (row < rows) store(out + size_t(row) * DIM + column, load(table + size_t(ids[row]) * DIM + column));
}

constexpr int LIST = WARPS * 32 * 4;  // places noted before their rows are added up

extern "C" __global__ void __launch_bounds__(WARPS * 32) embedding_backward(const int* ids, const ACTIVATION* dout, float* dtable, int rows, int accumulate) {
    __shared__ int places[LIST];
    __shared__ int counts[WARPS];
    __shared__ float sums[WARPS][DIM];
    const int entry = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Eight total[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) total[s] = {};
    int noted = 0;  // the same in every thread
    for (int start = 0; start < rows; start += WARPS * 32 * 4) {
        // every thread looks at 4 ids in a row; a warp's, and then the block's, are noted in the order of n
        const int first = start + threadIdx.x * 4;
        unsigned mine = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) mine |= unsigned(first + i < rows && ids[first + i] == entry) << i;
        int before = __popc(mine);
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int left = __shfl_up_sync(WHOLE_WARP, before, distance);
            if (lane >= distance) before += left;
        }
        if (lane == 31) counts[warp] = before;
        __syncthreads();
        int place = before - __popc(mine), found = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp) place += counts[w];
            found += counts[w];
        }
        if (noted + found > LIST) {  // no room: add up what is noted
            for (int n = warp; n < noted; n += WARPS)
#pragma unroll
                for (int s = 0; s < STEPS; ++s)
                    if (s * 32 + lane < VECTORS) {
                        const Eight value = load(dout + size_t(places[n]) * DIM + (s * 32 + lane) * WIDTH);
#pragma unroll
                        for (int i = 0; i < WIDTH; ++i) total[s].at[i] += value.at[i];
                    }
            noted = 0;
            __syncthreads();
        }
        for (int i = 0; i < 4; ++i)
            if (mine >> i & 1) places[noted + place++] = first + i;
        noted += found;
        __syncthreads();
    }
    for (int n = warp; n < noted; n += WARPS)
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (s * 32 + lane < VECTORS) {
                const Eight value = load(dout + size_t(places[n]) * DIM + (s * 32 + lane) * WIDTH);
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) total[s].at[i] += value.at[i];
            }
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
        if (s * 32 + lane < VECTORS) store(&sums[warp][(s * 32 + lane) * WIDTH], total[s]);
    __syncthreads();
    for (int column = threadIdx.x; column < DIM; column += WARPS * 32) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[w][column];
        float* target = dtable + size_t(entry) * DIM + column;
        *target = accumulate ? *target + sum : sum;
    }
}
