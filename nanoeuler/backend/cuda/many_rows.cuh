// Products of a weight with up to 64 rows, on the matrix units of a chip with clusters (sm_90a).
//
// A cluster of SPLIT blocks takes TILES tiles of 16 + 16 outputs; its blocks share the inputs, over
// which a product sums. As weights do not depend on the kernel before, they are loaded ahead of its
// end (overlap.cuh). Four warps multiply by wgmma, over one half of each panel of 64 inputs; the
// other four take the other half. Halves and then the shares of a cluster are added up in a fixed
// order; its blocks send each other the rows that the other one owns. Equal inputs give equal bits.
//
// wgmma takes 64 rows of its left factor. That is x, if there are so many rows, and else the
// weight. If it has fewer rows, what lies behind them is multiplied, too, and never read.
//
// Shared memory: x and the weights in panels (swizzled: matrix_units.cuh), which later give way to
// sums; the sums of the other blocks; squares (SPLIT, ROWS); the norm's weight and, of a GPT-2,
// bias (DEPTH).
//
// Compiled in: ROWS, the most rows of x (8, 16, 32 or 64), of which `rows` are there; WARPS of a
// block; GPT2.
#include "common.cuh"
#include "norm.cuh"
#include "overlap.cuh"

static_assert(sizeof(ACTIVATION) == 2 && WARPS == 8, "what the warps of a block are dealt to");

constexpr int THREADS = WARPS * 32, SHARES = WARPS / 4;  // of a panel
constexpr int PANEL = 64, PANEL_BYTES = PANEL * 2;  // of a row
constexpr int WGMMA_ROWS = 64;

extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ unsigned address_of(int offset) {
    return static_cast<unsigned>(__cvta_generic_to_shared(memory)) + offset;
}

#include "shared_memory.cuh"
#include "wgmma.cuh"

// Address in the shared memory of block `rank` of the cluster
__device__ __forceinline__ unsigned address_in(int rank, int offset) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address_of(offset)), "r"(rank));
    return there;
}

__device__ __forceinline__ void send(unsigned there, float4 values) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(values.x),
        "f"(values.y), "f"(values.z), "f"(values.w)
        : "memory");
}

__device__ __forceinline__ void send(unsigned there, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four outputs of the first 16 of a tile, and the same of the second 16, of one row
struct Item {
    bool there;
    int row, tile, column;  // column: 0, 4, 8 or 12
};

__host__ __device__ constexpr int ceiling(int work, int per) { return (work + per - 1) / per; }
__host__ __device__ constexpr int highest(int a, int b) { return a > b ? a : b; }

// A product over INPUTS, which SPLIT blocks share; a cluster takes TILES tiles of outputs. NORMED:
// x goes through a norm.
template <int INPUTS, int SPLIT, int TILES, bool NORMED>
struct Product {
    static constexpr int PANELS = ceiling(ceiling(INPUTS, PANEL), SPLIT), DEPTH = PANELS * PANEL;
    static constexpr int COLUMNS = 32 * TILES, SUM_ROW = (COLUMNS + 4) * 4;  // bytes
    static constexpr int WEIGHT = ROWS * DEPTH * 2, FACTORS = WEIGHT + COLUMNS * DEPTH * 2,
                         SUMS = SHARES * ROWS * SUM_ROW;
    static constexpr bool OUTPUTS_LEFT = ROWS < WGMMA_ROWS;
    static constexpr int LEFT = OUTPUTS_LEFT ? COLUMNS : ROWS, LEFT_AT = OUTPUTS_LEFT ? WEIGHT : 0,
                         RIGHT = OUTPUTS_LEFT ? ROWS : COLUMNS,
                         RIGHT_AT = OUTPUTS_LEFT ? 0 : WEIGHT,
                         READ = LEFT_AT + ((PANELS - 1) * LEFT + WGMMA_ROWS) * PANEL_BYTES;
    static constexpr int OWNED = ceiling(ROWS, SPLIT);  // rows whose results a block completes
    static constexpr int RECEIVED = highest(FACTORS, SUMS),
                         SQUARES = RECEIVED + (SPLIT - 1) * OWNED * SUM_ROW,
                         NORM = SQUARES + SPLIT * ROWS * 4,
                         BYTES = highest(NORM + (GPT2 ? 2 : 1) * DEPTH * 4, READ);
    static constexpr int ITEMS = ceiling(OWNED * TILES * 4, THREADS);  // of a thread
    static_assert(SPLIT <= 8 && BYTES <= 227 * 1024, "what a cluster and a block may have");

    const int rank = blockIdx.x % SPLIT, first_tile = blockIdx.x / SPLIT * TILES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Starts to load the weights; `row_of(tile, half)` is the first of 16 rows, of which those
    // below `end_of(half)` are there.
    template <class RowOf, class EndOf>
    __device__ __forceinline__ void
    fetch(const ACTIVATION* weight, const RowOf& row_of, const EndOf& end_of) const {
        if (SPLIT > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#pragma unroll
        for (int i = threadIdx.x; i < COLUMNS * DEPTH / WIDTH; i += THREADS) {
            const int column = i / 8 % COLUMNS, half = column / 16 % 2,
                      own = i / (8 * COLUMNS) * PANEL + i % 8 * WIDTH, k = rank * DEPTH + own,
                      row = row_of(first_tile + column / 32, half) + column % 16;
            const bool present = row < end_of(half) && k < INPUTS;
            copy_16(WEIGHT + chunk_offset<COLUMNS>(column, own / WIDTH),
                present ? weight + size_t(row) * INPUTS + k : weight, present);
        }
    }

    // Behind it wgmma may read what the threads have written to shared memory.
    __device__ __forceinline__ static void publish() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
    }

    __device__ __forceinline__ void fetch_norm(const Norm& norm) const {
        for (int i = threadIdx.x; i < DEPTH / 4; i += THREADS) {
            const int k = rank * DEPTH + i * 4;
            copy_16(NORM + i * 16, k < INPUTS ? norm.weight + k : norm.weight, k < INPUTS);
            if (GPT2)
                copy_16(NORM + (DEPTH + i * 4) * 4, k < INPUTS ? norm.bias + k : norm.bias,
                    k < INPUTS);
        }
    }

    __device__ __forceinline__ static void await_copies() {
        asm volatile("cp.async.wait_all;" ::: "memory");
        publish();
    }

    // x as it is
    __device__ __forceinline__ void take(const ACTIVATION* x, int rows) const {
        constexpr int VECTORS = DEPTH / WIDTH;
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * VECTORS; i += THREADS) {
            const int row = i / VECTORS, vector = i % VECTORS,
                      k = rank * DEPTH + vector * WIDTH;
            const bool present = row < rows && k < INPUTS;
            copy_16(chunk_offset<ROWS>(row, vector),
                present ? x + size_t(row) * INPUTS + k : x, present);
        }
        await_copies();
    }

    // norm(x), of an RMSNorm without 1 / r: a factor of a whole row, it follows the product. A row
    // has eight lanes.
    __device__ __forceinline__ void
    take_normed(const RESIDUAL* x, float epsilon, int rows) const {
        if (GPT2) take_layer_normed(x, epsilon, rows);
        else take_scaled(x, rows);
    }

    // A warp takes rows, AT_ONCE at a time. Every block of a cluster reads them whole, as m has to
    // be known before the product.
    __device__ __forceinline__ void
    take_layer_normed(const RESIDUAL* x, float epsilon, int rows) const {
        constexpr int STEPS = ceiling(SPLIT * DEPTH / WIDTH, 32),
                      FETCHED = STEPS * sizeof(Raw<RESIDUAL>),
                      FITTING = FETCHED <= 48 ? 4 : FETCHED <= 96 ? 2 : 1,
                      AT_ONCE = FITTING < ROWS / WARPS ? FITTING : ROWS / WARPS;
        const float* scales = reinterpret_cast<const float*>(memory + NORM);
#pragma unroll 1
        for (int first = warp; first < ROWS; first += AT_ONCE * WARPS) {
            Raw<RESIDUAL> vector[AT_ONCE][STEPS];
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r)
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const int row = first + r * WARPS, k = (s * 32 + lane) * WIDTH;
                    vector[r][s] = {};
                    if (row < rows && k < INPUTS) vector[r][s].fetch(x + size_t(row) * INPUTS + k);
                }
            if (first == warp) await_copies();  // of all warps' first rows
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) {
                float sum = 0, squares = 0;
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const Eight value = vector[r][s].value();
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sum += value.at[i];
                }
                const float mean = warp_sum(sum) / INPUTS;
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    if ((s * 32 + lane) * WIDTH >= INPUTS) continue;
                    const Eight value = vector[r][s].value();
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i)
                        squares += (value.at[i] - mean) * (value.at[i] - mean);
                }
                const float inverse = 1.0f / sqrtf(warp_sum(squares) / INPUTS + epsilon);
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const int k = (s * 32 + lane) * WIDTH, own = k - rank * DEPTH;
                    if (own < 0 || own >= DEPTH) continue;
                    Eight value = vector[r][s].value();
                    const Eight scale = load(scales + own), shift = load(scales + DEPTH + own);
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i)
                        value.at[i] = (value.at[i] - mean) * (inverse * scale.at[i]) + shift.at[i];
                    store(reinterpret_cast<ACTIVATION*>(
                              memory + chunk_offset<ROWS>(first + r * WARPS, own / WIDTH)),
                        value);
                }
            }
        }
        publish();
    }

    __device__ __forceinline__ void take_scaled(const RESIDUAL* x, int rows) const {
        constexpr int AT_ONCE = THREADS / 8, STEPS = ceiling(DEPTH / WIDTH, 8),
                      PASSES = ceiling(ROWS, AT_ONCE);
        const int first = threadIdx.x / 8;
        Raw<RESIDUAL> vector[PASSES][STEPS];
        auto there = [&](int row, int step) {
            const int at = step * 8 + lane % 8;
            return row < rows && at < DEPTH / WIDTH && rank * DEPTH + at * WIDTH < INPUTS;
        };
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int row = first + p * AT_ONCE;
                vector[p][s] = {};
                if (there(row, s))
                    vector[p][s].fetch(x + size_t(row) * INPUTS + rank * DEPTH +
                                       (s * 8 + lane % 8) * WIDTH);
            }
        await_copies();
        const float* norm = reinterpret_cast<const float*>(memory + NORM);
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const int row = first + p * AT_ONCE;
            float squares = 0;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int at = s * 8 + lane % 8;
                Eight value = vector[p][s].value();
                if (row >= ROWS || at >= DEPTH / WIDTH) continue;
                const Eight scale = load(norm + at * WIDTH);
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    squares = fmaf(value.at[i], value.at[i], squares), value.at[i] *= scale.at[i];
                store(
                    reinterpret_cast<ACTIVATION*>(memory + chunk_offset<ROWS>(row, at)), value);
            }
#pragma unroll
            for (int distance = 1; distance < 8; distance *= 2)
                squares += __shfl_xor_sync(WHOLE_WARP, squares, distance);
            if (lane % 8 == 0 && row < ROWS) this->squares()[rank * ROWS + row] = squares;
        }
        publish();
    }

    __device__ __forceinline__ static float* squares() {
        return reinterpret_cast<float*>(memory + SQUARES);
    }

    __device__ __forceinline__ void multiply() const {
        constexpr int STEPS = PANEL / 16 / SHARES;
        const int share = warp / 4;
        float sums[RIGHT / 8][4];
        pin(sums);
        begin_products();
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const int offset = (share * STEPS + step) * 32;
                wgmma(sums, descriptor(LEFT_AT + panel * (LEFT * PANEL_BYTES), offset, 16),
                    descriptor(RIGHT_AT + panel * (RIGHT * PANEL_BYTES), offset, 16),
                    panel | step);
            }
        commit_products();
        await_products<0>();
        pin(sums);
        __syncthreads();  // sums take the place of the factors
#pragma unroll
        for (int i = 0; i < RIGHT / 2; ++i) {
            const int left = warp % 4 * 16 + i % 4 / 2 * 8 + lane / 4,
                      right = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const int row = OUTPUTS_LEFT ? right : left, column = OUTPUTS_LEFT ? left : right;
            if (left < LEFT)
                reinterpret_cast<float*>(memory + (share * ROWS + row) * SUM_ROW)[column] =
                    sums[i / 4][i % 4];
        }
        __syncthreads();
        if (SPLIT > 1) exchange();
    }

    // The sum of the block's warps, of four columns of a row
    __device__ __forceinline__ static float4 own(int row, int column) {
        float4 sum = *reinterpret_cast<const float4*>(memory + row * SUM_ROW + column * 4);
#pragma unroll
        for (int share = 1; share < SHARES; ++share)
            sum = sum + *reinterpret_cast<const float4*>(
                            memory + (share * ROWS + row) * SUM_ROW + column * 4);
        return sum;
    }

    // Where a block keeps what block `from` sent of its row `row`
    __device__ __forceinline__ static int received(int from, int by, int row) {
        return RECEIVED + ((from < by ? from : from - 1) * OWNED + row) * SUM_ROW;
    }

    // Sends the other blocks the sums of the rows that they own.
    __device__ __forceinline__ void exchange() const {
        constexpr int PER_ROW = COLUMNS / 4, COUNT = (SPLIT - 1) * OWNED * PER_ROW;
        asm volatile("barrier.cluster.wait;" ::: "memory");  // all of the cluster have started
#pragma unroll
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            const int other = i / (OWNED * PER_ROW), owner = other < rank ? other : other + 1,
                      row = i / PER_ROW % OWNED, column = i % PER_ROW * 4;
            if (owner * OWNED + row < ROWS)
                send(address_in(owner, received(rank, owner, row) + column * 4),
                    own(owner * OWNED + row, column));
        }
        if (NORMED && !GPT2 && threadIdx.x < ROWS && threadIdx.x / OWNED != rank)
            send(address_in(threadIdx.x / OWNED, SQUARES + (rank * ROWS + threadIdx.x) * 4),
                squares()[rank * ROWS + threadIdx.x]);
        asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
    }

    __device__ __forceinline__ Item item(int index, int rows) const {
        const int i = threadIdx.x + index * THREADS, row = i / (TILES * 4);
        Item one;
        one.row = rank * OWNED + row, one.tile = i / 4 % TILES, one.column = i % 4 * 4;
        one.there = row < OWNED && one.row < rows;
        return one;
    }

    // Results of an item: four outputs of the first 16 of its tile, or (half = 1) of the second
    __device__ __forceinline__ float4 result(const Item& item, int half) const {
        const int column = item.tile * 32 + half * 16 + item.column;
        float4 sum = {};
#pragma unroll
        for (int from = 0; from < SPLIT; ++from) {
            const float4 part =
                from == rank ? own(item.row, column)
                             : *reinterpret_cast<const float4*>(
                                   memory + received(from, rank, item.row - rank * OWNED) +
                                   column * 4);
            sum = from == 0 ? part : sum + part;
        }
        return sum;
    }

    // What follows the product: 1 / r of an item's row
    __device__ __forceinline__ float inverse_rms(const Item& item, float epsilon) const {
        if (GPT2) return 1;
        float sum = squares()[item.row];
#pragma unroll
        for (int from = 1; from < SPLIT; ++from) sum += squares()[from * ROWS + item.row];
        return 1.0f / sqrtf(sum / INPUTS + epsilon);
    }
};

__device__ __forceinline__ void store_four(bfloat16* to, float4 values) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack_bf16(values.x, values.y), pack_bf16(values.z, values.w));
}

__device__ __forceinline__ void store_four(float* to, float4 values) {
    *reinterpret_cast<float4*>(to) = values;
}

__device__ __forceinline__ float4 load_four(const float* from) {
    return *reinterpret_cast<const float4*>(from);
}

__device__ __forceinline__ float4 load_four(const bfloat16* from) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    const float2 low = unpack_bf16(bits.x), high = unpack_bf16(bits.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float4 operator*(float factor, float4 a) {
    return make_float4(factor * a.x, factor * a.y, factor * a.z, factor * a.w);
}

// product + bias, of four outputs from `output` on
__device__ __forceinline__ float4 biased(float4 product, const ACTIVATION* bias, int output) {
    return GPT2 ? product + load_four(bias + output) : product;
}
