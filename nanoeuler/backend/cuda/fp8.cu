// fp8 around a step: scales from the magnitudes of the steps before (delayed scaling:
// Micikevicius et al. 2022, section 3.2), and the weights in e4m3.
//
// measure    in: values (count) ACTIVATION      out: their largest magnitude, in slot
//            bytes: count · activation
// advance    in and out: slots (count), history (HISTORY, count) float
//            A slot's largest magnitude joins its history, and its scale becomes the power of two
//            by which HEADROOM times the largest of the history is still a number of e4m3. In a
//            history ∞ stands as 0, but it counts as saturated.
//            bytes: next to none
// magnitudes in: weights (matrices of `working`)   out: the largest magnitude of each, in its slot
//            bytes: 2 of each weight
// quantize   in: weights, slots   out: scales; along (rows, columns), across (columns, rows) e4m3
//            bytes: 4 of each weight
//
// The products of a matrix with activations read `along`, those with gradients `across`: wgmma
// takes e4m3 along the sum only.
//
// Compiled in: THREADS of a block, HISTORY, HEADROOM, TILE rows and columns of a matrix that a
// block transposes at a time.
#include "common.cuh"
#define FP8 1
#include "fp8.cuh"

struct Matrix {
    const bfloat16* weights;
    unsigned char *along, *across;
    int rows, columns;
};

// The power of two by which values up to `top` become at most E4M3_MAX; 1 where nothing is known.
__device__ __forceinline__ float scale_for(float top) {
    if (!(top > 0)) return 1;
    const int exponent = int(__float_as_uint(E4M3_MAX / top) >> 23) - 127;
    return __uint_as_float(unsigned(max(-100, min(exponent, 100)) + 127) << 23);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    measure(const ACTIVATION* values, long long count, Slot* slot) {
    float top = 0;
    for (long long index = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH; index < count;
        index += (long long)gridDim.x * THREADS * WIDTH) {
        const Eight value = load(values + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) top = larger(top, value.at[i]);
    }
    note_largest(slot, top);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    advance(Slot* slots, float* history, int count) {
    const int index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    Slot& slot = slots[index];
    float latest = __uint_as_float(slot.largest);
    slot.saturated += !(latest * slot.scale <= E4M3_MAX);
    if (!isfinite(latest)) latest = 0;
    float top = latest;
    for (int step = HISTORY - 1; step > 0; --step) {
        const float earlier = history[(step - 1) * count + index];
        history[step * count + index] = earlier;
        top = fmaxf(top, earlier);
    }
    history[index] = latest;
    slot.largest = 0;
    slot.scale = scale_for(HEADROOM * top);
    slot.inverse = 1 / slot.scale;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    magnitudes(const Matrix* matrices, Slot* slots) {
    const Matrix matrix = matrices[blockIdx.y];
    const size_t count = size_t(matrix.rows) * matrix.columns;
    float top = 0;
    for (size_t index = (size_t(blockIdx.x) * THREADS + threadIdx.x) * WIDTH; index < count;
        index += size_t(gridDim.x) * THREADS * WIDTH) {
        const Eight value = load(matrix.weights + index);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) top = larger(top, value.at[i]);
    }
    note_largest(slots + blockIdx.y, top);
}

// A thread takes 8 columns of each of some rows. Transposed, bytes go through shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(const Matrix* matrices, Slot* slots) {
    constexpr int LANES = TILE / WIDTH;  // threads of a row
    static_assert(THREADS % LANES == 0 && TILE % 16 == 0, "whole rows");
    __shared__ unsigned char tile[TILE][TILE + 4];
    const Matrix matrix = matrices[blockIdx.y];
    Slot* slot = slots + blockIdx.y;
    const float scale = scale_for(__uint_as_float(slot->largest));
    const int across = (matrix.columns + TILE - 1) / TILE,
              tiles = (matrix.rows + TILE - 1) / TILE * across;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const int first_row = index / across * TILE, first_column = index % across * TILE,
                  lane = threadIdx.x % LANES * WIDTH;
        for (int row = threadIdx.x / LANES; row < TILE; row += THREADS / LANES) {
            const int r = first_row + row, c = first_column + lane;
            if (r >= matrix.rows || c >= matrix.columns) continue;
            const size_t at = size_t(r) * matrix.columns + c;
            const Eight value = load(matrix.weights + at);
            unsigned words[2];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                words[i] = e4m3_pair(scale, value.at[4 * i], value.at[4 * i + 1]) |
                           e4m3_pair(scale, value.at[4 * i + 2], value.at[4 * i + 3]) << 16;
            *reinterpret_cast<uint2*>(matrix.along + at) = make_uint2(words[0], words[1]);
            *reinterpret_cast<unsigned*>(&tile[row][lane]) = words[0];
            *reinterpret_cast<unsigned*>(&tile[row][lane + 4]) = words[1];
        }
        __syncthreads();
        for (int column = threadIdx.x / LANES; column < TILE; column += THREADS / LANES) {
            const int c = first_column + column, r = first_row + lane;
            if (c >= matrix.columns || r >= matrix.rows) continue;
            unsigned words[2] = {};
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                words[i / 4] |= unsigned(tile[lane + i][column]) << i % 4 * 8;
            *reinterpret_cast<uint2*>(matrix.across + size_t(c) * matrix.rows + r) =
                make_uint2(words[0], words[1]);
        }
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        slot->scale = scale;
        slot->inverse = 1 / scale;
    }
}
