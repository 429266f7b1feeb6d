// Products of tiles by a warp, on the units that a type of number has: FFMA (exact float32),
// mma.sync (bf16, TF32; sm_80 and up) or wgmma (bf16; sm_90a).
//
// A tile is ROWS × HEAD_SIZE numbers in shared memory, in panels of 128 bytes per row (a row of 64
// bytes: one panel of 64) whose 16-byte chunks are permuted by an exclusive or with the row. Eight
// rows of one chunk then lie in all 32 banks, so that neither ldmatrix nor a 16-byte copy meets a
// bank twice. It is the layout that wgmma calls the 128-byte (64-byte) swizzle.
//
// A warp owns 16 rows of every result, held in registers as mma.m16n8 has them: block j of 8
// columns is four floats per lane,
//     x[j][0], x[j][1] = row lane / 4,     columns 8j + 2 (lane % 4) and the next
//     x[j][2], x[j][3] = row lane / 4 + 8, the same columns
// A result in that form is at once the left factor of the next product: probabilities never leave
// the registers.
//
// Compiled with -D: HEAD_SIZE; UNIT = FFMA, TF32, BF16 or WGMMA; ROWS_IN_REGISTERS = 1 to keep the
// left factor of a transposed product in registers.

#include "bfloat16.cuh"

#define FFMA 1
#define TF32 2
#define BF16 3
#define WGMMA 4

#if !defined(UNIT) || !defined(ROWS_IN_REGISTERS) || UNIT < FFMA || UNIT > WGMMA
#error "compile with -D of UNIT (FFMA, TF32, BF16 or WGMMA) and ROWS_IN_REGISTERS"
#endif

#if UNIT == WGMMA && ROWS_IN_REGISTERS
// kept in registers, results were wrong with tiles of 64 keys
#error "wgmma takes the left factor of a transposed product from shared memory"
#endif

#if UNIT == FFMA || UNIT == TF32
typedef float element;
#else
typedef bfloat16 element;
#endif

constexpr int PER_CHUNK = 16 / sizeof(element);
constexpr int ROW_BYTES = HEAD_SIZE * sizeof(element);
constexpr int CHUNKS = ROW_BYTES / 16;
[[maybe_unused]] constexpr int STEPS =
    CHUNKS / 2;  // of a product over HEAD_SIZE: mma takes two chunks at a time in every format
constexpr int PANEL_BYTES = ROW_BYTES < 128 ? ROW_BYTES : 128;
constexpr int OWNED =
    UNIT == WGMMA ? 64
                  : 16;  // rows that the threads of one instruction own: they must branch alike

extern __shared__ __align__(1024) unsigned char shared[];  // tiles are byte offsets into it

__device__ __forceinline__ unsigned address_of(int offset) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared)) + offset;
}

// ---- numbers

__device__ __forceinline__ void unpack(uint4 chunk, float (&values)[PER_CHUNK]) {
    unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(element) == 4) {
            values[i] = __uint_as_float(words[i]);
        } else {
            const float2 both = unpack_bf16(words[i]);
            values[2 * i] = both.x, values[2 * i + 1] = both.y;
        }
    }
}

__device__ __forceinline__ float tf32(float x) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return __uint_as_float(rounded);
}

// ---- copies from global to shared memory

#include "shared_memory.cuh"

template <int BYTES>  // 4 or 8
__device__ __forceinline__ void copy_small(int target, const void* source, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address_of(target)),
        "l"(source), "n"(BYTES), "r"(present ? BYTES : 0)
        : "memory");
}

// Waits until all but the newest PENDING groups of this thread's copies have arrived, also for
// wgmma, which reads through the asynchronous proxy.
template <int PENDING>
__device__ __forceinline__ void await_own_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    if constexpr (UNIT == WGMMA) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits for the copies of every thread of the block.
template <int PENDING>
__device__ __forceinline__ void await_copies() {
    await_own_copies<PENDING>();
    __syncthreads();
}

// ---- wgmma

#if UNIT == WGMMA
#include "wgmma.cuh"
#else
// The products of other units are done when their call returns.
template <int BLOCKS>
__device__ __forceinline__ void pin(float (&)[BLOCKS][4]) {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
template <int PENDING>
__device__ __forceinline__ void await_products() {}
#endif

// ---- mma.sync

#if UNIT == WGMMA
__device__ __forceinline__ void store_matrices(int offset, const unsigned (&words)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address_of(offset)),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(int offset, const unsigned (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     address_of(offset)),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
}
#endif

__device__ __forceinline__ void
mma(float (&x)[4], const unsigned (&left)[4], unsigned right_0, unsigned right_1) {
#if UNIT == TF32
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}

__device__ __forceinline__ void round_words(unsigned (&words)[4]) {
    if constexpr (UNIT == TF32) {
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = __float_as_uint(tf32(__uint_as_float(words[i])));
    }
}

// ---- the two products of attention, for every unit

// The left factor of multiply_transposed: this warp's 16 rows of a tile of ROWS rows
template <int ROWS>
struct Rows {
    int tile, first;  // the tile, and the warp's first row in it
#if ROWS_IN_REGISTERS
    unsigned words[STEPS][4];
#endif

    __device__ __forceinline__ void load_step(unsigned (&step)[4], int s) const {
        int lane = threadIdx.x % 32;
        load_matrices(step, tile + chunk_offset<ROWS>(first + lane % 16, 2 * s + lane / 16));
        round_words(step);
    }

    __device__ __forceinline__ void load(int tile_, int first_) {
        tile = tile_, first = first_;
#if ROWS_IN_REGISTERS
#pragma unroll
        for (int s = 0; s < STEPS; s++) load_step(words[s], s);
#endif
    }
};

// x (16, N) = rows (16, HEAD_SIZE) · tileᵀ,  tile (N, HEAD_SIZE)
template <int N, int ROWS>
__device__ __forceinline__ void
multiply_transposed(float (&x)[N / 8][4], const Rows<ROWS>& rows, int tile) {
    [[maybe_unused]] int lane = threadIdx.x % 32;
    if constexpr (UNIT != WGMMA) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0;
    }
#if UNIT == FFMA
    // Sums of sums of 8: in one chain over the row every addition would round the whole sum so far,
    // with errors twice as large.
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        auto four = [&](int base, auto at) {
            return *reinterpret_cast<const float4*>(shared + base + at);
        };
        float4 upper[2], lower[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            upper[c] = four(rows.tile, chunk_offset<ROWS>(rows.first + lane / 4, chunk + c));
            lower[c] = four(rows.tile, chunk_offset<ROWS>(rows.first + lane / 4 + 8, chunk + c));
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float of_upper = 0, of_lower = 0;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float4 right =
                        four(tile, chunk_offset<N>(8 * j + 2 * (lane % 4) + i, chunk + c));
                    of_upper = fmaf(upper[c].x, right.x,
                        fmaf(upper[c].y, right.y,
                            fmaf(upper[c].z, right.z, fmaf(upper[c].w, right.w, of_upper))));
                    of_lower = fmaf(lower[c].x, right.x,
                        fmaf(lower[c].y, right.y,
                            fmaf(lower[c].z, right.z, fmaf(lower[c].w, right.w, of_lower))));
                }
                x[j][i] += of_upper, x[j][2 + i] += of_lower;
            }
        }
    }
#elif UNIT == WGMMA
    constexpr int PER_PANEL = PANEL_BYTES / 32;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned long long right =
            descriptor(tile, s / PER_PANEL * (N * 128) + s % PER_PANEL * 32, 16);
        unsigned group = ROWS == 64 ? 0 : rows.first / 64 * (64 * PANEL_BYTES);
        wgmma(x,
            descriptor(rows.tile + group, s / PER_PANEL * (ROWS * 128) + s % PER_PANEL * 32, 16),
            right, s > 0);
    }
#else
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned left[4];
#if ROWS_IN_REGISTERS
#pragma unroll
        for (int i = 0; i < 4; i++) left[i] = rows.words[s][i];
#else
        rows.load_step(left, s);
#endif
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            unsigned right[4];
            load_matrices(right,
                tile + chunk_offset<N>(8 * j + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
            round_words(right);
            mma(x[j], left, right[0], right[1]);
            mma(x[j + 1], left, right[2], right[3]);
        }
    }
#endif
}

// The left factor of multiply_add: a result of 16 × N, rounded to what the unit reads
template <int N>
struct Weights {
#if UNIT == FFMA || UNIT == TF32
    float values[N / 8][4];
    __device__ __forceinline__ float at(int j, int i) const { return values[j][i]; }
#else
    unsigned words[N / 16][4];
    __device__ __forceinline__ float at(int j, int i) const {
        const float2 both = unpack_bf16(words[j / 2][j % 2 * 2 + i / 2]);
        return i % 2 ? both.y : both.x;
    }
#endif

    // Keeps the registers for these numbers, which wgmma may read until it is awaited
    __device__ __forceinline__ void hold() {
#if UNIT == WGMMA
#pragma unroll
        for (int j = 0; j < N / 16; j++)
            asm volatile(""
                : "+r"(words[j][0]), "+r"(words[j][1]), "+r"(words[j][2]),
                "+r"(words[j][3])::"memory");
#endif
    }

    __device__ __forceinline__ void round(const float (&x)[N / 8][4]) {
#if UNIT == FFMA || UNIT == TF32
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) values[j][i] = UNIT == TF32 ? tf32(x[j][i]) : x[j][i];
        }
#else
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            words[j / 2][j % 2 * 2] = pack_bf16(x[j][0], x[j][1]);
            words[j / 2][j % 2 * 2 + 1] = pack_bf16(x[j][2], x[j][3]);
        }
#endif
    }
};

// x (16, HEAD_SIZE) += weights (16, N) · tile (N, HEAD_SIZE)
template <int N>
__device__ __forceinline__ void
multiply_add(float (&x)[HEAD_SIZE / 8][4], const Weights<N>& weights, int tile) {
    [[maybe_unused]] int lane = threadIdx.x % 32;
#if UNIT == FFMA
    constexpr int TERMS =
        HEAD_SIZE < 128 ? 8 : 1;  // sums of sums here too, where the registers suffice
#pragma unroll
    for (int first = 0; first < N; first += TERMS) {
        float upper[TERMS], lower[TERMS];
#pragma unroll
        for (int k = 0; k < TERMS; k++) {
            int column = first + k,
                owner = (lane & ~3) | (column % 8 / 2);  // of this column of this lane's rows
            upper[k] = __shfl_sync(~0u, weights.values[column / 8][column % 2], owner);
            lower[k] = __shfl_sync(~0u, weights.values[column / 8][2 + column % 2], owner);
        }
#pragma unroll
        for (int j = 0; j < HEAD_SIZE / 8; j++) {
            float sums[4];
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] = TERMS > 1 ? 0 : x[j][i];
#pragma unroll
            for (int k = 0; k < TERMS; k++) {
                float2 right = *reinterpret_cast<const float2*>(
                    shared + tile + chunk_offset<N>(first + k, 2 * j + lane % 4 / 2) +
                    lane % 2 * 8);
                sums[0] = fmaf(upper[k], right.x, sums[0]);
                sums[1] = fmaf(upper[k], right.y, sums[1]);
                sums[2] = fmaf(lower[k], right.x, sums[2]);
                sums[3] = fmaf(lower[k], right.y, sums[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) x[j][i] = TERMS > 1 ? x[j][i] + sums[i] : sums[i];
        }
    }
#elif UNIT == TF32
    // mma counts k as lane % 4 and lane % 4 + 4 where a result has columns 2 (lane % 4) and the
    // next. As a sum has no order, both factors take the latter.
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        const float (&w)[4] = weights.values[k];
        unsigned left[4] = {__float_as_uint(w[0]), __float_as_uint(w[2]), __float_as_uint(w[1]),
            __float_as_uint(w[3])};
        int row = 8 * k + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < HEAD_SIZE / 8; j++) {
            auto right = [&](int row) {
                return __float_as_uint(tf32(*reinterpret_cast<const float*>(
                    shared + tile + chunk_offset<N>(row, 2 * j + lane / 16) + lane / 4 % 4 * 4)));
            };
            mma(x[j], left, right(row), right(row + 1));
        }
    }
#elif UNIT == BF16
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
        for (int j = 0; j < HEAD_SIZE / 8; j += 2) {
            unsigned right[4];
            load_matrices_transposed(
                right, tile + chunk_offset<N>(16 * k + lane % 16, j + lane / 16));
            mma(x[j], weights.words[k], right[0], right[1]);
            mma(x[j + 1], weights.words[k], right[2], right[3]);
        }
    }
#else
#pragma unroll
    for (int k = 0; k < N / 16; k++)
        wgmma<1>(x, weights.words[k], descriptor(tile, k * 16 * PANEL_BYTES, N * 128), 1);
#endif
}
