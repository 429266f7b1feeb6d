// Products of a weight with a few rows, as fast as the weight can be read.
//
// A warp takes rows of the weight (outputs, inputs) into registers, with all loads under way at
// once. As weights do not depend on the kernel before, they are loaded ahead of its end
// (overlap.cuh). They meet the rows of x, which lie in shared memory (a single one: in the warp's
// registers); then the lanes' sums are added up. Every sum has a fixed order: equal inputs give
// equal bits.
//
// Compiled in: DIM; ROWS, the most rows of x, a power of two up to 8, of which `rows` are there;
// WARPS of a block; PAIRS of rows of a wide weight that a warp takes; GPT2.
#include "common.cuh"
#include "norm.cuh"
#include "overlap.cuh"

// A lane's share of a row of SIZE elements: every 32nd vector of eight.
template <int SIZE>
struct Row {
    static constexpr int VECTORS = SIZE / WIDTH, STEPS = (VECTORS + 31) / 32;
    static __device__ __forceinline__ bool inside(int vector) {
        return VECTORS % 32 == 0 || vector < VECTORS;
    }
    Raw<ACTIVATION> at[STEPS];

    __device__ __forceinline__ void fetch(const ACTIVATION* row) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int vector = s * 32 + threadIdx.x % 32;
            at[s] = {};
            if (inside(vector)) at[s].fetch(row + vector * WIDTH);
        }
    }
};

// Like value(), in fewer instructions: a product of few rows has as many of these as of sums.
__device__ __forceinline__ Eight widened(const Raw<float>& raw) { return raw.value(); }

__device__ __forceinline__ Eight widened(const Raw<bfloat16>& raw) {
    const uint4 bits = raw.bits[0];
    const float2 a = unpack_bf16(bits.x), b = unpack_bf16(bits.y), c = unpack_bf16(bits.z),
                 d = unpack_bf16(bits.w);
    return {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
}

// norm(x) of one row by a warp, rounded as a product reads it.
__device__ __forceinline__ void
normalize(Row<DIM>& out, const RESIDUAL* x, const Norm& norm) {
    constexpr int STEPS = Row<DIM>::STEPS;
    Eight value[STEPS], scale[STEPS], shift[STEPS];
    float squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int vector = s * 32 + threadIdx.x % 32;
        value[s] = scale[s] = shift[s] = {};
        if (!Row<DIM>::inside(vector)) continue;
        value[s] = load(x + vector * WIDTH), scale[s] = load(norm.weight + vector * WIDTH);
        if (GPT2) shift[s] = load(norm.bias + vector * WIDTH);
    }
    if (GPT2) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sum += value[s].at[i];
        const float mean = warp_sum(sum) / DIM;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (Row<DIM>::inside(s * 32 + threadIdx.x % 32))
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) value[s].at[i] -= mean;
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) squares += value[s].at[i] * value[s].at[i];
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / DIM + norm.epsilon);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            value[s].at[i] *= inverse * scale[s].at[i];
            if (GPT2) value[s].at[i] += shift[s].at[i];
        }
        store(reinterpret_cast<ACTIVATION*>(out.at[s].bits), value[s]);
    }
}

// The rows that a product's weight meets.
template <int SIZE>
struct Inputs {
    Row<SIZE> single;  // ROWS = 1: in the registers of every warp
    const ACTIVATION* shared;  // otherwise (ROWS, SIZE)

    __device__ __forceinline__ Eight at(int b, int step) const {
        if (ROWS == 1) return widened(single.at[step]);
        Raw<ACTIVATION> raw;
        raw.fetch(shared + b * SIZE + (step * 32 + threadIdx.x % 32) * WIDTH);
        return widened(raw);
    }
};

__device__ __forceinline__ Inputs<DIM>
normalized(ACTIVATION* shared, const RESIDUAL* x, const Norm& norm, int rows) {
    Inputs<DIM> inputs;
    inputs.shared = shared;
    if (ROWS == 1) {
        normalize(inputs.single, x, norm);
        return inputs;
    }
    for (int b = threadIdx.x / 32; b < rows; b += blockDim.x / 32) {
        normalize(inputs.single, x + b * DIM, norm);
#pragma unroll
        for (int s = 0; s < Row<DIM>::STEPS; ++s) {
            const int vector = s * 32 + threadIdx.x % 32;
            if (Row<DIM>::inside(vector))
                store(shared + b * DIM + vector * WIDTH, inputs.single.at[s].value());
        }
    }
    __syncthreads();
    return inputs;
}

// Sums of N values over a warp, all at once: halves of the values are exchanged between halves of
// the lanes. Lane l gets the sum of value l · N / 32.
template <int N, int DISTANCE = 16>
__device__ __forceinline__ float sums_over_lanes(float (&values)[N]) {
    if constexpr (N > 1) {
        const bool upper = threadIdx.x & DISTANCE;
        float halves[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const float mine = upper ? values[i + N / 2] : values[i],
                        other = upper ? values[i] : values[i + N / 2];
            halves[i] = mine + __shfl_xor_sync(WHOLE_WARP, other, DISTANCE);
        }
        return sums_over_lanes<N / 2, DISTANCE / 2>(halves);
    } else {
        float sum = values[0];
#pragma unroll
        for (int distance = DISTANCE; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(WHOLE_WARP, sum, distance);
        return sum;
    }
}

// GROUP rows of a weight, and their products with the rows of x.
template <int GROUP, int SIZE>
struct Weights {
    static constexpr int COUNT = GROUP * ROWS;  // products
    static constexpr int LANES = 32 / COUNT;  // that end up with the same product
    Row<SIZE> row[GROUP];

    // Gives the lane the product of row `product() % GROUP` with row `product() / GROUP` of x. Rows
    // of x that do not exist are computed, too, from whatever lies in memory, and not used: a
    // branch for each would keep loads from overlapping.
    __device__ __forceinline__ float times(const Inputs<SIZE>& inputs) const {
        float sums[COUNT] = {};
#pragma unroll
        for (int s = 0; s < Row<SIZE>::STEPS; ++s) {
            if (!Row<SIZE>::inside(s * 32 + threadIdx.x % 32)) continue;
            Eight weight[GROUP];
#pragma unroll
            for (int g = 0; g < GROUP; ++g) weight[g] = widened(row[g].at[s]);
#pragma unroll
            for (int b = 0; b < ROWS; ++b) {
                const Eight x = inputs.at(b, s);
#pragma unroll
                for (int g = 0; g < GROUP; ++g)
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i)
                        sums[b * GROUP + g] = fmaf(weight[g].at[i], x.at[i], sums[b * GROUP + g]);
            }
        }
        return sums_over_lanes(sums);
    }
    static __device__ __forceinline__ int product() { return threadIdx.x % 32 / LANES; }
    // Whether this lane writes: one lane for each product that there is.
    static __device__ __forceinline__ bool writes(int rows) {
        return threadIdx.x % LANES == 0 && product() / GROUP < rows;
    }
};

__device__ __forceinline__ int warp_of_grid() {
    return blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}
