// What the epilogues of fused_linear.cu share. An epilogue takes a tile in two parts, or in a
// backward pass in four, and leaves each in a stage of the ring, as panels of 64 columns: of
// bfloat16, or of e4m3 in half the bytes, and these transposed, with the tokens last (fp8.cuh).
// It is a struct that counts its panels (NoEpilogue lists them) and has three functions:
//
//   fetch    reads global memory, before the product where registers suffice
//   finish   works on the whole tile behind the product
//   compute  makes words[panel][i] of x[block] and, in a backward pass, of packed[…][i]: two
//            neighbouring results, for even i of the upper one of the lane's rows

constexpr int PANEL = TILE_ROWS * 128;  // bytes of 64 columns of a tile
constexpr int STAGE = PANEL + TILE_COLUMNS * 128;  // bytes of a stage: x, then the weights
constexpr int E4M3_PANEL = PANEL / 2;
constexpr int BEHIND_RING = STAGES * STAGE;  // where e4m3 results lie that no stage has room for

typedef float Results[TILE_COLUMNS / 8][4];  // of a thread, as matrix_units.cuh says
typedef unsigned Words[4][4];  // pairs of results: of each panel, those of 16 columns

struct Arguments {
    int rows, rotated_columns;
    const int* positions;
    const float *cosine, *sine;
    const unsigned* bias;
};

// A computing thread: which row of a panel it reads or writes, and how it rounds results.
struct Thread {
    int warp, lane, row, corner;
    float factor, scale[2] = {0, 0}, top[2] = {0, 0};  // by slot of e4m3: the largest magnitude

    __device__ __forceinline__ int at(int panel, int j) const { return panel + (corner ^ j * 16); }

    // Two neighbours of a row, the lane's upper or lower one.
    __device__ __forceinline__ unsigned bf16_pair(const float (&x)[4], int lower) const {
        const float first = x[2 * lower], second = x[2 * lower + 1];
        return FP8 ? pack_bf16(factor * first, factor * second) : pack_bf16(first, second);
    }

    // In e4m3 with FP8.
    __device__ __forceinline__ unsigned rounded(int slot, float first, float second) {
        if (!FP8) return pack_bf16(first, second);
        top[slot] = larger(larger(top[slot], first), second);
        return e4m3_pair(scale[slot], first, second);
    }
};

// A thread's part of a panel of e4m3, which it writes at every second call.
struct E4m3Panel {
    unsigned words[4];

    __device__ __forceinline__ void
    write(int panel, const Thread& thread, int j, const unsigned (&pairs)[4]) {
        const unsigned lane = threadIdx.x % 32, from = lane & ~3u | 2 * lane & 3u;
#pragma unroll
        for (int half = 0; half < 2; half++) {  // lanes hold two of 8 columns; then four of 16
            const unsigned both = pairs[half] | pairs[2 + half] << 16,
                           low = __shfl_sync(~0u, both, from),
                           high = __shfl_sync(~0u, both, from + 1);
            words[j % 4 + half] = __byte_perm(low, high, lane & 2 ? 0x7632 : 0x5410);
        }
        if (j % 4 == 0) return;
        const int chunk = (thread.lane / 16 ^ thread.row / 2) & 3;  // the 64-byte swizzle
        store_matrices(panel + (thread.row * 64 + chunk * 16 ^ j / 4 * 32), words);
    }

    __device__ __forceinline__ void
    write_transposed(int panel, const Thread& thread, int j, const unsigned (&pairs)[4]) {
#pragma unroll
        for (int next = 0; next < 2; next++)  // of two blocks of columns
            words[j % 4 + next] = __byte_perm(pairs[2 * next], pairs[2 * next + 1], 0x5140);
        if (j % 4 == 0) return;
        const int column = j / 4 * 32 + thread.lane, chunk = (thread.warp ^ column) & 7;
        store_matrices_transposed(panel + column * 128 + chunk * 16, words);
    }
};

// The panels of a part. Words are those of PANELS, then those of QUANTIZED or TRANSPOSED, of which
// the latter have one more.
struct NoEpilogue {
    static constexpr int READS = 0;  // of packed, read in a backward pass
    static constexpr int PANELS = 0;  // of bfloat16: two of packed, a third of out
    static constexpr int QUANTIZED = 0;  // of e4m3: of out, or in a backward pass of `quantized`
    static constexpr int TRANSPOSED = 0;  // of e4m3, transposed: of `across`, the last of out
    static constexpr bool EARLY = true;  // fetches before the product: registers suffice
    static constexpr bool GATE_AND_UP = false;  // panels of packed are `up` columns apart, not 64

    __device__ __forceinline__ void fetch(const Arguments&, int row, int column, int lane) {}
    __device__ __forceinline__ void finish(Results& x, const Arguments&, int column) const {}
};
