// The parts that attention's kernels share: tiles are copied in and results written out, the lanes
// of a row are added up, and it is decided which query sees which keys.
#include "matrix_units.cuh"
#include "fp8.cuh"
#include "rotation.cuh"

#define NEVER __int_as_float(0xff800000)  // −∞
constexpr float LOG2E = 1.4426950408889634f;
constexpr int HEAD_BLOCKS = HEAD_SIZE / 8;

// Tensor units take powers of two, whose exponential is one instruction. Exact float32 takes those
// of e, whose argument isn't rounded once more.
constexpr float BASE = UNIT == FFMA ? 1.0f : LOG2E;
__device__ __forceinline__ float power(float x) {
    if constexpr (UNIT == FFMA) return expf(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float logarithm(float x) { return UNIT == FFMA ? logf(x) : log2f(x); }

#define TENSOR(name) \
    element *__restrict__ name, long long name##_batch, int name##_token, int name##_head
#define CONST_TENSOR(name) const TENSOR(name)

// Copies tiles of ROWS = heads × PER_HEAD rows: row h · PER_HEAD + i is
// source[h · head_stride + i · token_stride], zeros from i = `count` on. A thread takes the same
// chunk of every PASS-th row, so that its addresses within a tile are computed once. `thread` is
// its number among THREADS.
template <int ROWS, int PER_HEAD, int THREADS>
struct TileCopy {
    static constexpr int PASS = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && (PASS % PER_HEAD == 0 || PER_HEAD % PASS == 0),
        "a thread keeps its chunk, and heads do not share a pass by halves");
    int row, chunk, target, stride;
    const element* source;

    __device__ __forceinline__
    TileCopy(const element* first_row, int token_stride, unsigned thread = threadIdx.x) {
        row = thread / (unsigned)CHUNKS, chunk = thread % (unsigned)CHUNKS;
        stride = token_stride;
        target = chunk_offset<ROWS>(row, chunk);
        source = first_row + row % PER_HEAD * token_stride + chunk * PER_CHUNK;
    }

    __device__ __forceinline__ void
    operator()(int tile, int first, int count, int head_stride = 0) const {
        const element* from = source + (long long)first * stride;
#pragma unroll
        for (int begin = 0; begin < ROWS; begin += PASS) {
            int row_in_head = begin % PER_HEAD + row % PER_HEAD,
                head = begin / PER_HEAD + row / PER_HEAD;
            // the swizzle repeats after eight rows
            int to =
                PASS % 8 ? chunk_offset<ROWS>(begin + row, chunk) : target + begin * PANEL_BYTES;
            if (ROWS % PASS == 0 || begin + row < ROWS)
                copy_16(tile + to, from + begin % PER_HEAD * stride + head * head_stride,
                    row_in_head < count);
        }
    }
};

__device__ __forceinline__ void store_two(float* to, float left, float right) {
    *reinterpret_cast<float2*>(to) = make_float2(left, right);
}
__device__ __forceinline__ void store_two(bfloat16* to, float left, float right) {
    *reinterpret_cast<unsigned*>(to) = pack_bf16(left, right);
}

// Writes this warp's 16 rows of a result, row r times factor[r / 8], `count` of them, through its
// rows of a tile, so that whole chunks go out: `at` elements behind `target` and, with FP8, behind
// `e4m3`.
template <int ROWS>
__device__ __forceinline__ void
store_rows(float (&x)[HEAD_BLOCKS][4], const float (&factor)[2], int tile, int first,
    element* target, long long at, int stride, int count, unsigned char* e4m3, Slot* slot) {
    int lane = threadIdx.x % 32;
    target += at;
#pragma unroll
    for (int j = 0; j < HEAD_BLOCKS; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + lane / 4 + 8 * half;
            float left = x[j][2 * half] * factor[half], right = x[j][2 * half + 1] * factor[half];
            int at = sizeof(element) == 2
                         ? chunk_offset<ROWS>(row, j) + lane % 4 * 4
                         : chunk_offset<ROWS>(row, 2 * j + lane % 4 / 2) + lane % 2 * 8;
            store_two(reinterpret_cast<element*>(shared + tile + at), left, right);
        }
    }
    __syncwarp();
    [[maybe_unused]] float top = 0, scale = FP8 ? slot->scale : 0;
#pragma unroll
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row < count) {
            const uint4* from = reinterpret_cast<const uint4*>(
                shared + tile + chunk_offset<ROWS>(first + row, chunk));
            *reinterpret_cast<uint4*>(target + (long long)row * stride + chunk * PER_CHUNK) = *from;
            if constexpr (FP8) {
                float values[PER_CHUNK];
                unpack(*from, values);
                unsigned words[PER_CHUNK / 4] = {};
#pragma unroll
                for (int k = 0; k < PER_CHUNK; k += 2) {
                    words[k / 4] |= e4m3_pair(scale, values[k], values[k + 1]) << k % 4 * 8;
                    top = larger(larger(top, values[k]), values[k + 1]);
                }
                *reinterpret_cast<uint2*>(e4m3 + at + (long long)row * stride + chunk * PER_CHUNK) =
                    make_uint2(words[0], words[1]);
            }
        }
    }
    if constexpr (FP8) note_largest(slot, top);
}

// Rotates this lane's two rows of a result, `first` and the one 8 below, by the negative angles of
// their positions, as the inverse of rope.cu does: columns i and i + HEAD_SIZE / 2 are in the same
// lane. `last`: the last row of the array.
__device__ __forceinline__ void rotate_back(float (&x)[HEAD_BLOCKS][4], const int* positions,
    const float* cosine, const float* sine, int first, int last) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        long long angle = (long long)positions[min(first + 8 * half, last)] * (HEAD_SIZE / 2) +
                          threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < HEAD_BLOCKS / 2; j++) {
            float2 cos = *reinterpret_cast<const float2*>(cosine + angle + 8 * j),
                   sin = *reinterpret_cast<const float2*>(sine + angle + 8 * j);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &a = x[j][2 * half + i], &b = x[j + HEAD_BLOCKS / 2][2 * half + i];
                float2 pair = rotated(b, a, i ? cos.y : cos.x, i ? sin.y : sin.x);
                b = pair.x, a = pair.y;
            }
        }
    }
}

template <int BLOCKS>
__device__ __forceinline__ void clear(float (&x)[BLOCKS][4]) {
#pragma unroll
    for (int j = 0; j < BLOCKS; j++) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0;
}

__device__ __forceinline__ float sum_of_four_lanes(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float max_of_four_lanes(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// The queries that a block, a group of threads that branch together, and a lane hold, and the keys
// that each of them sees.
template <int BLOCK_HEADS, int PER_HEAD>
struct Queries {
    int batch, head, head_in_block;  // `head`: the block's first
    int first, count;  // the block's first query and how many there are
    int row, query;  // the warp's first row in the tile, its query counted from the block's first
    int keys_begin, keys_end;  // keys that the block sees
    int group_first, group_last;  // key positions of the group's first and last query
    int group_start, group_last_start;  // and where their documents start
    int position, start[2];  // of the lane's two rows, which lie 8 apart

    __device__ __forceinline__
    Queries(const int* starts, int offset, int T, int S, int heads, int warp) {
        int blocks = heads / BLOCK_HEADS, lane = threadIdx.x % 32;
        batch = blockIdx.y / blocks, head = blockIdx.y % blocks * BLOCK_HEADS;
        // a head's tiles run side by side, on keys still in the cache; those with most keys first
        first = (gridDim.x - 1 - blockIdx.x) * PER_HEAD;
        count = min(PER_HEAD, T - first);
        row = warp * 16, query = row % PER_HEAD, head_in_block = row / PER_HEAD;
        starts += (long long)batch * T;
        auto start_of = [&](int i) { return starts[min(i, T - 1)]; };
        keys_begin = start_of(first), keys_end = min(offset + first + count, S);
        int group = first + row / OWNED * OWNED % PER_HEAD;
        group_first = offset + group, group_last = group_first + OWNED - 1;
        group_start = start_of(group), group_last_start = start_of(group + OWNED - 1);
#pragma unroll
        for (int half = 0; half < 2; half++)
            start[half] = start_of(first + query + lane / 4 + 8 * half);
        position = offset + first + query + lane / 4;
    }

    __device__ __forceinline__ bool sees(int key, int keys) const {
        return key <= group_last && key + keys > group_start;
    }
    __device__ __forceinline__ bool sees_all(int key, int keys) const {
        return key + keys - 1 <= group_first && key >= group_last_start;
    }
    __device__ __forceinline__ bool sees_key(int half, int key) const {
        return key <= position + 8 * half && key >= start[half];
    }
};
