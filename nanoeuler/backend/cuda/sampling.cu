// The next token of each row, chosen as nanoeuler/inference/sampling.py does: greedy, or by temperature, top-k and top-p. A block a row.
//
// Weights are exp((logit − highest) / temperature) as whole multiples of 2⁻⁴⁴, so that sums are exact in any order. Tokens are ranked by (logit, lower
// id first), a number of its own for each; no token is moved. What is looked for is always the first token, in the order of ranks, at which the sum of
// weights (or the count) of all up to it exceeds a bound: the k-th, the last one needed to reach p, the one drawn. Its rank is found bit by bit, the sum over all
// tokens of at least a trial rank telling whether the bit stays, and is known for sure once a single token is left between the bounds.
//
// in:  logits (B, V) float, rows `stride` apart; allowed (V) bytes, 1 for a token that may be chosen; settings: see there
//      draws (B) int64: the number of the token in its row's sequence, the counter of Philox 4×64 (Salmon et al. 2011), whose key holds the seed
// out: chosen (B) int, −1 where a logit is not finite or nothing is allowed; tokens (B) int: the same, for the next step, where −1 is 0;
//      draws advance by 1, and so do lengths (B) int, the tokens in the cache, where given
// bytes: B · V · 4; the rest stays in registers
//
// VOCAB and THREADS are compiled in.
#include "common.cuh"
#include "overlap.cuh"

typedef unsigned long long u64;

constexpr int EACH = (VOCAB + THREADS - 1) / THREADS, WARPS = THREADS / 32;  // tokens of a thread: every THREADS-th
__device__ constexpr int bits(int number) { return number < 2 ? number : 1 + bits(number / 2); }
constexpr int ID_BITS = bits(VOCAB - 1);
constexpr double UNIT = 17592186044416.0;  // 2⁴⁴
constexpr u64 STREAM = 0x73616D706C65ull;  // of sampling.py

struct Settings {
    double temperature, top_p;
    u64 seed;
    long long top_k;
};

// A number in [0, 1) that depends on (seed, counter) alone. NumPy's generator counts before it draws: hence counter + 1.
__device__ double uniform(u64 seed, u64 counter) {
    u64 c0 = counter + 1, c1 = c0 == 0, c2 = 0, c3 = 0, k0 = seed, k1 = STREAM;
    for (int round = 0; round < 10; ++round) {
        const u64 high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), low0 = 0xD2E7470EE14C6C93ull * c0;
        const u64 high1 = __umul64hi(0xCA5A826395121157ull, c2), low1 = 0xCA5A826395121157ull * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B97F4A7C15ull, k1 += 0xBB67AE8584CAA73Bull;
    }
    return double(c0 >> 11) * (1.0 / 9007199254740992.0);
}

// Higher for a higher logit, and of equals for the lower id; never 0.
__device__ __forceinline__ u64 rank_of(float logit, int id) {
    const unsigned sign = __float_as_uint(logit + 0.0f);  // −0 equals 0
    const unsigned ordered = sign >> 31 ? ~sign : sign | 0x80000000u;
    return u64(ordered) << ID_BITS | unsigned((1 << ID_BITS) - 1 - id);
}

struct Sum {
    u64 weight;
    unsigned count;
};

// Over the block, the same in every thread. Calls have to alternate between `turn` 0 and 1, so that nobody writes what another still reads.
__device__ __forceinline__ Sum block_total(u64 weight, unsigned count, int turn) {
    __shared__ u64 weights[2][WARPS];
    __shared__ unsigned counts[2][WARPS];
    constexpr unsigned PART = (1u << 26) - 1;  // 32 of them fit into a word, which a warp adds up at once
    weight = u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight) & PART)) + (u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight >> 26) & PART)) << 26) +
             (u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight >> 52))) << 52);
    count = __reduce_add_sync(WHOLE_WARP, count);
    if (threadIdx.x % 32 == 0) weights[turn][threadIdx.x / 32] = weight, counts[turn][threadIdx.x / 32] = count;
    __syncthreads();
    Sum sum = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum.weight += weights[turn][w], sum.count += counts[turn][w];
    return sum;
}

// Ranks from `low` up to, not including, `high`.
struct Bounds {
    u64 low, high;
};

// Bounds with a single token between them: the first one, from the highest rank down, at which the sum of weights (of ones, with `by_count`) exceeds `bound`.
__device__ Bounds first_beyond(const u64 (&rank)[EACH], const u64 (&weight)[EACH], bool by_count, u64 bound) {
    Bounds bounds = {0, 1ull << (32 + ID_BITS)};
    unsigned above_low = VOCAB, above_high = 0;
    for (int bit = 31 + ID_BITS; bit >= 0 && above_low - above_high > 1; --bit) {
        const u64 trial = bounds.low | 1ull << bit;
        u64 sum = 0;
        unsigned count = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (rank[i] >= trial) sum += weight[i], ++count;
        const Sum found = block_total(sum, count, bit % 2);
        if ((by_count ? found.count : found.weight) > bound) bounds.low = trial, above_low = found.count;
        else bounds.high = trial, above_high = found.count;
    }
    __syncthreads();  // the next search may start with the same turn
    return bounds;
}

__device__ __forceinline__ u64 drop_below(u64 low, const u64 (&rank)[EACH], u64 (&weight)[EACH]) {
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += weight[i] = rank[i] >= low ? weight[i] : 0;
    sum = block_total(sum, 0, 0).weight;
    __syncthreads();
    return sum;
}

// A bound below `total`, so that something exceeds it.
__device__ __forceinline__ u64 bound_below(double bound, u64 total) { return bound <= 0 ? 0 : min(u64(bound), total - 1); }

extern "C" __global__ void __launch_bounds__(THREADS)
    choose(const float* logits, long long stride, const unsigned char* allowed, const Settings* settings, long long* draws, int* chosen, int* tokens, int* lengths) {
    wait_for_previous();
    const int b = blockIdx.x;
    const Settings s = *settings;
    float logit[EACH], highest = -INFINITE;
    bool broken = false;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int id = i * THREADS + threadIdx.x;
        logit[i] = id < VOCAB && allowed[id] ? logits[b * stride + id] : -INFINITE;
        broken |= !(logit[i] < INFINITE);
        highest = fmaxf(highest, logit[i]);
    }
    highest = block_max<WARPS>(highest);
    broken = __syncthreads_or(broken) || highest == -INFINITE;
    u64 rank[EACH], weight[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int id = i * THREADS + threadIdx.x;
        rank[i] = id < VOCAB ? rank_of(logit[i], id) : 0;  // 0: there is no such token
        weight[i] = broken || s.temperature == 0 ? 0 : u64(exp((double(logit[i]) - double(highest)) / s.temperature) * UNIT + 0.5);
    }
    Bounds found = {0, 0};
    if (!broken && s.temperature == 0) {
        found = first_beyond(rank, weight, true, 0);
    } else if (!broken) {
        u64 low = 0;
        if (0 < s.top_k && s.top_k < VOCAB) low = first_beyond(rank, weight, true, s.top_k - 1).low;
        u64 total = drop_below(low, rank, weight);
        if (s.top_p < 1) total = drop_below(first_beyond(rank, weight, false, bound_below(ceil(s.top_p * double(total)) - 1, total)).low, rank, weight);
        found = first_beyond(rank, weight, false, bound_below(uniform(s.seed, draws[b]) * double(total), total));
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (rank[i] && found.low <= rank[i] && rank[i] < found.high) chosen[b] = tokens[b] = i * THREADS + threadIdx.x;
    __syncthreads();  // every thread has read draws[b]
    if (threadIdx.x == 0) {
        if (broken) chosen[b] = -1, tokens[b] = 0;
        ++draws[b];
        if (lengths) ++lengths[b];
    }
}
