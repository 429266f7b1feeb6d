// Around a pass that checks drafts: TOKENS tokens of each sequence, the last one that was chosen
// and drafts of those that follow it.
//
// lay_out     in: tokens (B) int; drafted (B, heads) int, by the model's heads; lengths (B) int,
//             tokens in the cache; draws (B) int64, the number of the next random number; text
//             (B, S) int, the tokens in the cache, to which those laid out are added
//             out: drafts (B, TOKENS − 1) int: what followed the last tokens where they stood in
//             the text before, or else those of the heads, and zeros; ids, positions (B, TOKENS)
//             int, counters (B, TOKENS) int64 of each of its tokens
// accept_drafts  in: chosen (B, TOKENS) int, what was chosen behind each; drafts; x (B · TOKENS, D)
//             RESIDUAL behind the last block
//             out: chosen, where −2 stands for what lies behind a wrong draft; tokens, the last one
//             kept (0 for −1); lengths and draws, which count the kept ones; last (B, D)
//             RESIDUAL, what the last one was chosen from
// bytes: accept_drafts: 2 · B · D · residual
//
// Compiled in: THREADS of a block, TOKENS; LEAST and MOST, how many of a text's last tokens are
// looked for.
#include "common.cuh"

constexpr int DRAFTS = TOKENS - 1, NOT_KEPT = -2, PLACE_BITS = 28;

// A block takes a sequence. Of places where as many tokens agree, the last one counts.
extern "C" __global__ void __launch_bounds__(THREADS)
    lay_out(const int* tokens, const int* drafted, const int* lengths, const long long* draws,
        int* text, int* drafts, int* ids, int* positions, long long* counters, int heads,
        int capacity) {
    __shared__ int best;
    const int b = blockIdx.x, token = tokens[b], end = min(lengths[b], capacity - 1);
    text += size_t(b) * capacity, drafts += b * DRAFTS, drafted += b * heads;
    if (threadIdx.x == 0) best = 0, text[end] = token;
    __syncthreads();
    int found = 0;  // above PLACE_BITS how many tokens agree, below them where the last one stands
    for (int place = threadIdx.x; place < end; place += THREADS) {
        int equal = 0;
        while (equal < MOST && equal <= place && text[place - equal] == text[end - equal])
            ++equal;
        if (equal >= LEAST) found = max(found, equal << PLACE_BITS | place);
    }
    if (found > 0) atomicMax(&best, found);
    __syncthreads();
    const int start = (best & (1 << PLACE_BITS) - 1) + 1, period = end + 1 - start;
    for (int t = threadIdx.x; t < TOKENS; t += THREADS) {
        int id = token;
        if (t > 0) {
            const int m = t - 1;
            id = best > 0 ? text[start + m % period] : m < heads ? drafted[m] : 0;
            drafts[m] = id;
        }
        const int row = b * TOKENS + t;
        ids[row] = id, positions[row] = lengths[b] + t, counters[row] = draws[b] + t;
    }
    __syncthreads();  // the text has been read
    for (int t = 1 + threadIdx.x; t < TOKENS; t += THREADS)
        if (end + t < capacity) text[end + t] = drafts[t - 1];
}

// A block takes a sequence.
extern "C" __global__ void __launch_bounds__(THREADS)
    accept_drafts(int* chosen, const int* drafts, const RESIDUAL* x, int* tokens, int* lengths,
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
