// Sums that do not depend on who computes what: see nanoeuler/training/lanes.py.
//
// add_neighbours    in: the gradients (count) float of each of LANES lanes, by their addresses
//                   out: the first ← ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), say
//                   bytes: 4 · (LANES + 1) · count
// squares_of_cells  in: values (P) float; bounds (cells, 2): where each begins and ends in them
//                   out: sums (cells) double: Σ values² of each, by a block of its own
//                   bytes: 4 P
//
// Compiled in: LANES, a power of two; THREADS and NORM_THREADS of a block.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    add_neighbours(float* const* lanes, long long count) {
    const long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (index >= count) return;
    Eight sums[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) sums[lane] = load(lanes[lane] + index);
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
#pragma unroll
        for (int first = 0; first < LANES; first += 2 * distance) {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                sums[first].at[i] += sums[first + distance].at[i];
        }
    }
    store(lanes[0] + index, sums[0]);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    squares_of_cells(const float* values, const long long* bounds, double* sums) {
    const long long stop = bounds[2 * blockIdx.x + 1];
    double total = 0;
    for (long long index = bounds[2 * blockIdx.x] + threadIdx.x * WIDTH; index < stop;
        index += NORM_THREADS * WIDTH) {
        const Eight value = load(values + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) total += double(value.at[i]) * value.at[i];
    }
    total = block_sum<NORM_THREADS / 32>(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
