// Embedding: out_n = table[ids_n], and backward: dtable[v] = Σ of dout_n over the n with ids_n = v, in a fixed order.
//
// DIM and the WARPS of a block are compiled in. The backward pass has one block for each entry of the vocabulary: each of its warps looks through
// a share of the ids (the L2 holds them), notes where the block's entry stands, and adds those rows up. No atomics: equal inputs give equal bits.
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

constexpr int LIST = 256;     // places that a warp notes before it adds their rows up
constexpr int LOOKS = 4;      // ids that a lane looks at together

__device__ __forceinline__ void add_rows(const ACTIVATION* dout, const int* places, int count, int lane, Eight (&total)[STEPS]) {
#pragma unroll 4
    for (int n = 0; n < count; ++n)
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (s * 32 + lane < VECTORS) {
                const Eight value = load(dout + size_t(places[n]) * DIM + (s * 32 + lane) * WIDTH);
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) total[s].at[i] += value.at[i];
            }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) embedding_backward(const int* ids, const ACTIVATION* dout, float* dtable, int rows, int accumulate) {
    __shared__ int noted[WARPS][LIST];
    __shared__ float sums[WARPS][DIM];
    const int entry = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int share = (rows + WARPS - 1) / WARPS, stop = min(rows, (warp + 1) * share);
    Eight total[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) total[s] = {};
    int* places = noted[warp];
    int count = 0;
    for (int start = warp * share; start < stop; start += 32 * LOOKS) {
        int id[LOOKS];
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) id[i] = start + i * 32 + lane < stop ? ids[start + i * 32 + lane] : -1;
#pragma unroll
        for (int i = 0; i < LOOKS; ++i) {
            const unsigned found = __ballot_sync(WHOLE_WARP, id[i] == entry);
            if (id[i] == entry) places[count + __popc(found & ((1u << lane) - 1))] = start + i * 32 + lane;
            count += __popc(found);
        }
        if (count > LIST - 32 * LOOKS) {
            __syncwarp();
            add_rows(dout, places, count, lane, total);
            __syncwarp();
            count = 0;
        }
    }
    __syncwarp();
    add_rows(dout, places, count, lane, total);
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
