// packed = x Wᵀ, its first `rotated_columns` columns rotated by their positions (rotation.cuh).
// Twin: linear_rope of ops.py with linear and rope of reference.py.
//
// in:  x (N, D), W (C, D); positions (N) int; cosine, sine (positions, E / 2) float
// out: packed (N, C) bfloat16: q, k and v
// bytes: x, W and packed once
//
// Compiled with -D: ROTATED_HEAD, the head size E.
struct Rope : NoEpilogue {
    static constexpr int PANELS = 2, BLOCKS = ROTATED_HEAD / 8, HALF = ROTATED_HEAD / 2;
    static constexpr bool EARLY = ROTATED_HEAD <= 64;

    float2 cos[2][BLOCKS / 2], sin[2][BLOCKS / 2];  // of the lane's two rows, which lie 8 apart

    __device__ __forceinline__ void fetch(const Arguments& given, int row, int column, int lane) {
        if (column >= given.rotated_columns) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int position = given.positions[min(row + 8 * half, given.rows - 1)];
            const size_t angle = size_t(position) * HALF + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < BLOCKS / 2; j++) {
                cos[half][j] = *reinterpret_cast<const float2*>(given.cosine + angle + 8 * j);
                sin[half][j] = *reinterpret_cast<const float2*>(given.sine + angle + 8 * j);
            }
        }
    }

    __device__ __forceinline__ void finish(Results& x, const Arguments& given, int column) const {
        if (column >= given.rotated_columns) return;
#pragma unroll
        for (int head = 0; head < TILE_COLUMNS / ROTATED_HEAD; head++) {
            if (column + head * ROTATED_HEAD >= given.rotated_columns) break;
#pragma unroll
            for (int j = 0; j < BLOCKS / 2; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float c = i % 2 ? cos[i / 2][j].y : cos[i / 2][j].x;
                    const float s = i % 2 ? sin[i / 2][j].y : sin[i / 2][j].x;
                    float& a = x[head * BLOCKS + j][i];
                    float& b = x[head * BLOCKS + BLOCKS / 2 + j][i];
                    const float2 both = rotated(a, b, c, s);
                    a = both.x, b = both.y;
                }
            }
        }
    }

    __device__ __forceinline__ void compute(Words& words, int i, const Results& x, int block,
        const unsigned (&)[2][4], Thread& thread) const {
        words[0][i] = thread.bf16_pair(x[block], i % 2);
        words[1][i] = thread.bf16_pair(x[block + 8], i % 2);
    }
};
