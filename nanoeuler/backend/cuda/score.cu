// The log-probability of each row's token. A block takes a row, and reads it twice: the second time
// it comes from the L1 or the L2.
//
// in:  logits (B, V) float, rows `stride` apart; tokens (B) int, −1 for none
// out: logprobs (B) float, of −1 without a meaning
// bytes: B · V · 4
//
// Compiled in: VOCAB, and THREADS of a block.
#include "common.cuh"
#include "overlap.cuh"

constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    score(const float* logits, long long stride, const int* tokens, float* logprobs) {
    let_next_start();
    wait_for_previous();
    const float* row = logits + blockIdx.x * stride;
    float highest = -INFINITE;
    for (int id = threadIdx.x; id < VOCAB; id += THREADS) highest = fmaxf(highest, row[id]);
    highest = block_max<WARPS>(highest);
    float sum = 0;
    for (int id = threadIdx.x; id < VOCAB; id += THREADS) sum += expf(row[id] - highest);
    sum = block_sum<WARPS>(sum);
    if (threadIdx.x == 0)
        logprobs[blockIdx.x] = row[max(tokens[blockIdx.x], 0)] - highest - logf(sum);
}
