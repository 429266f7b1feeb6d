// Copies in e4m3 on their way from rows of columns to columns of tokens: a tile of TOKENS × DIM
// bytes, tokens in the order that fp8.cuh says. Words of a row are exchanged among groups of 8, by
// which of the 16 tokens they are, so that neither rows nor columns meet a bank twice. Without FP8,
// or where a row is no multiple of 128 columns, there are none.
//
// Compiled in: FP8, DIM, TOKENS that are transposed together.
#if FP8 && DIM % 128 == 0
extern __shared__ __align__(16) unsigned char tile[];
static_assert(TOKENS % 16 == 0 && TOKENS <= 64, "whole groups of words");

__device__ __forceinline__ unsigned* word_of(int token, int word) {
    return reinterpret_cast<unsigned*>(tile) + token * (DIM / 4) + (word ^ token / 16 * 8);
}

__device__ __forceinline__ void keep(int token, int vector, uint2 words) {
    const int place = token / 16 * 16 + token % 8 * 2 + token / 8 % 2;
    *reinterpret_cast<uint2*>(word_of(place, vector * 2)) = words;
}

template <int THREADS>
__device__ __forceinline__ void store_across(unsigned char* across, int first, int rows) {
    constexpr int GROUPS = TOKENS / 16;  // of 16 tokens, which neighbouring threads take
    const int group = threadIdx.x % GROUPS;
    if (first + group * 16 >= rows) return;
#pragma unroll 1
    for (int word = threadIdx.x / GROUPS; word < DIM / 4; word += THREADS / GROUPS) {
        unsigned words[4][4];  // by 4 tokens, then by column
#pragma unroll
        for (int four = 0; four < 4; ++four) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[four][i] = *word_of(group * 16 + four * 4 + i, word);
            turn(words[four]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<uint4*>(across + size_t(word * 4 + i) * rows + first + group * 16) =
                make_uint4(words[0][i], words[1][i], words[2][i], words[3][i]);
    }
}
#else
__device__ __forceinline__ void keep(int, int, uint2) {}
template <int>
__device__ __forceinline__ void store_across(unsigned char*, int, int) {}
#endif
