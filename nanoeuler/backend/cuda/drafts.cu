// Around a pass that checks drafts: TOKENS tokens of each sequence, the last one that was chosen
// and drafts of those that follow it.
//
// lay_out     in: tokens (B) int, drafts (B, TOKENS − 1) int; lengths (B) int, tokens in the cache;
//             draws (B) int64, the number of the next random number
//             out: ids, positions (B, TOKENS) int, counters (B, TOKENS) int64 of each of its tokens
// keep_right  in: chosen (B, TOKENS) int, what was chosen behind each; drafts; x (B · TOKENS, D)
//             RESIDUAL behind the last block
//             out: chosen, where −2 stands for what lies behind a wrong draft; tokens, the last one
//             kept (0 for −1); lengths and draws, which count the kept ones; last (B, D)
//             RESIDUAL, what the last one was chosen from
// bytes: keep_right: 2 · B · D · residual
//
// Compiled in: THREADS of a block, TOKENS.
#include "common.cuh"

constexpr int DRAFTS = TOKENS - 1, NOT_KEPT = -2;

extern "C" __global__ void __launch_bounds__(THREADS)
    lay_out(const int* tokens, const int* drafts, const int* lengths, const long long* draws,
        int* ids, int* positions, long long* counters, int rows) {
    const int row = blockIdx.x * THREADS + threadIdx.x, b = row / TOKENS, t = row % TOKENS;
    if (row >= rows) return;
    ids[row] = t == 0 ? tokens[b] : drafts[b * DRAFTS + t - 1];
    positions[row] = lengths[b] + t;
    counters[row] = draws[b] + t;
}

// A block takes a sequence.
extern "C" __global__ void __launch_bounds__(THREADS)
    keep_right(int* chosen, const int* drafts, const RESIDUAL* x, int* tokens, int* lengths,
        long long* draws, RESIDUAL* last, int dim) {
    const int b = blockIdx.x;
    chosen += b * TOKENS, drafts += b * DRAFTS;
    int right = 0;
    while (right < DRAFTS && chosen[right] == drafts[right]) ++right;
    for (int column = threadIdx.x; column < dim; column += THREADS)
        last[b * dim + column] = x[size_t(b * TOKENS + right) * dim + column];
    __syncthreads();  // all threads have read `chosen`
    if (threadIdx.x > 0) return;
    tokens[b] = max(chosen[right], 0);
    lengths[b] += right + 1;
    draws[b] += right + 1;
    for (int t = right + 1; t < TOKENS; ++t) chosen[t] = NOT_KEPT;
}
