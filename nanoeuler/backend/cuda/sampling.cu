// Chooses the next token of each row as nanoeuler/inference/sampling.py does: greedy, or by
// temperature, top-k and top-p. A block takes a row.
//
// Weights are exp((logit − highest) / temperature) as whole multiples of 2⁻⁴⁴, so that sums are
// exact in any order; greedy, 1 for the highest and 0 for all others. Tokens are in the order of
// falling logits, ties by rising id. Looked for is always the first token at which the sum of
// weights up to it exceeds a bound: the last one needed to reach p, or the one drawn. A vocabulary
// that fits into shared memory is sorted for that: first into bins of equal width, then by
// comparing the tokens of a bin. In a larger one ranks are searched bit by bit.
//
// in:  logits (B, V) float, rows `stride` apart; allowed (V) bytes, 1 for a token that may be
//      chosen; settings: see there, those of row b at b · settings_stride; draws (B) int64: the
//      number of the token in its row's sequence, the counter of Philox 4×64 (Salmon et al. 2011),
//      whose key holds the seed
// out: chosen (B) int, −1 where a logit is not finite or nothing is allowed; tokens (B) int: the
//      same for the next step, with 0 instead of −1; draws advance by 1, and so do lengths (B) int,
//      the tokens in the cache, where given
// bytes: B · V · 4; the rest stays on the chip
//
// Compiled in: VOCAB, THREADS of a block, BINS, and SHARED_BYTES of its dynamic shared memory, 0
// where tokens are searched instead of sorted.
#include "common.cuh"
#include "overlap.cuh"

typedef unsigned long long u64;

constexpr int EACH = (VOCAB + THREADS - 1) / THREADS,
              WARPS = THREADS / 32;  // tokens of a thread: every THREADS-th
__device__ constexpr int bits(int number) { return number < 2 ? number : 1 + bits(number / 2); }
constexpr int ID_BITS = bits(VOCAB - 1);
constexpr bool SORTED = SHARED_BYTES > 0;
constexpr double UNIT = 17592186044416.0;  // 2⁴⁴
constexpr u64 STREAM = 0x73616D706C65ull;  // of sampling.py

struct Settings {
    double temperature, top_p;
    u64 seed;
    long long top_k;
};

// A number in [0, 1) that depends on (seed, counter) alone. NumPy's generator counts before it
// draws: hence counter + 1.
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

// Higher for a higher logit; ties go to the lower id; never 0.
__device__ __forceinline__ u64 rank_of(float logit, int id) {
    const unsigned sign = __float_as_uint(logit + 0.0f);  // −0 equals 0
    const unsigned ordered = sign >> 31 ? ~sign : sign | 0x80000000u;
    return u64(ordered) << ID_BITS | unsigned((1 << ID_BITS) - 1 - id);
}

// The first token is needed whose sum exceeds draw · total, or reaches top_p · total. Both bounds
// are below `total`, so that there is one.
__device__ __forceinline__ u64 bound_of_draw(double draw, u64 total) {
    return min(u64(draw * double(total)), total - 1);
}

__device__ __forceinline__ u64 bound_of_p(double top_p, u64 total) {
    return min(max(u64(ceil(top_p * double(total))), 1ull), total) - 1;
}

// ---- tokens sorted

constexpr int BINS_EACH = BINS / THREADS;
static_assert(!SORTED || VOCAB * 8 + (BINS + 1) * 4 <= SHARED_BYTES, "ranks, then bins");
static_assert(!SORTED || (EACH * THREADS + THREADS - 1) * 8 <= SHARED_BYTES, "padded weights");

// Sum over the threads before this one.
template <typename T>
__device__ __forceinline__ T sum_before(T value) {
    __shared__ T sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T sum = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(WHOLE_WARP, sum, distance);
        if (lane >= distance) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    return sum - value + warp_sum(lane < warp ? sums[lane] : 0);
}

// Positions of the tokens in sorted order; −1 for those of no weight. `memory`: VOCAB ranks, then
// BINS + 1 counts.
__device__ __forceinline__ void sort(const float (&logit)[EACH], const u64 (&rank)[EACH],
    const u64 (&weight)[EACH], float highest, u64* memory, int (&position)[EACH]) {
    u64* ranks = memory;
    unsigned* bins = reinterpret_cast<unsigned*>(ranks + VOCAB);
    float farthest = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (weight[i]) farthest = fmaxf(farthest, highest - logit[i]);
    farthest = block_max<WARPS>(farthest);
    const float scale = farthest > 0 ? (BINS - 1) / farthest : 0.0f;
    uint4* mine = reinterpret_cast<uint4*>(bins) + threadIdx.x * (BINS_EACH / 4);
#pragma unroll
    for (int i = 0; i < BINS_EACH / 4; ++i) mine[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    int slot[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        position[i] =
            weight[i] ? min(int((highest - logit[i]) * scale), BINS - 1) : -1;  // the bin, for now
        if (weight[i]) slot[i] = atomicAdd(bins + position[i], 1u);
    }
    __syncthreads();
    uint4 counts[BINS_EACH / 4];
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < BINS_EACH / 4; ++i)
        counts[i] = mine[i], sum += counts[i].x + counts[i].y + counts[i].z + counts[i].w;
    sum = sum_before(sum);
#pragma unroll
    for (int i = 0; i < BINS_EACH / 4; ++i) {
        const uint4 count = counts[i];
        mine[i] = make_uint4(
            sum, sum + count.x, sum + count.x + count.y, sum + count.x + count.y + count.z);
        sum += count.x + count.y + count.z + count.w;
    }
    if (threadIdx.x == THREADS - 1) bins[BINS] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (weight[i]) ranks[bins[position[i]] + slot[i]] = rank[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (weight[i]) {
            const int first = bins[position[i]], stop = bins[position[i] + 1];
            position[i] = first;
            for (int j = first; j < stop; ++j) position[i] += ranks[j] > rank[i];
        }
    __syncthreads();
}

// Whether this thread chooses, and which of its tokens.
__device__ __forceinline__ int find_sorted(const u64 (&weight)[EACH], const int (&position)[EACH],
    u64* memory, const Settings& s, double draw) {
    __shared__ u64 total;
    __shared__ int drawn;
    auto padded = [](int at) {
        return at + at / EACH;
    };  // so that threads, each reading EACH in a row, meet different banks
#pragma unroll
    for (int i = 0; i < EACH; ++i) memory[padded(i * THREADS + threadIdx.x)] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (weight[i]) memory[padded(position[i])] = weight[i];
    __syncthreads();
    u64 mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) mine += memory[padded(threadIdx.x * EACH + i)];
    const u64 before = sum_before(mine);
    // The position of the first token that exceeds `bound`, and the sum up to it, found by the one
    // thread that holds it.
    auto first_beyond = [&](u64 bound, u64& sum) {
        sum = before;
        int at = threadIdx.x * EACH - 1;
        while (sum <= bound) sum += memory[padded(++at)];
        return at;
    };
    const bool top_k = 0 < s.top_k && s.top_k < VOCAB;
    if (threadIdx.x == (top_k ? (s.top_k - 1) / EACH : THREADS - 1)) {
        u64 sum = before + mine;
        if (top_k) {
            sum = before;
            for (int at = threadIdx.x * EACH; at < s.top_k; ++at) sum += memory[padded(at)];
        }
        total = sum;
    }
    __syncthreads();
    u64 bound = bound_of_p(s.top_p, total), sum;
    __syncthreads();
    if (before <= bound && bound < before + mine) first_beyond(bound, sum), total = sum;
    __syncthreads();
    bound = bound_of_draw(draw, total);
    if (before <= bound && bound < before + mine) drawn = first_beyond(bound, sum);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (position[i] == drawn) return i;
    return -1;
}

// ---- tokens searched

struct Sum {
    u64 weight;
    unsigned count;
};

// Over the block, the same in every thread. `parity` has to alternate between 0 and 1 from call to
// call, so that nobody writes what another thread still reads.
__device__ __forceinline__ Sum block_total(u64 weight, unsigned count, int parity) {
    __shared__ u64 weights[2][WARPS];
    __shared__ unsigned counts[2][WARPS];
    constexpr unsigned PART =
        (1u << 26) - 1;  // 32 of them fit into a word, which a warp adds up at once
    weight = u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight) & PART)) +
             (u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight >> 26) & PART)) << 26) +
             (u64(__reduce_add_sync(WHOLE_WARP, unsigned(weight >> 52))) << 52);
    count = __reduce_add_sync(WHOLE_WARP, count);
    if (threadIdx.x % 32 == 0)
        weights[parity][threadIdx.x / 32] = weight, counts[parity][threadIdx.x / 32] = count;
    __syncthreads();
    Sum sum = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; ++w)
        sum.weight += weights[parity][w], sum.count += counts[parity][w];
    return sum;
}

// Ranks from `low` up to, not including, `high`.
struct Bounds {
    u64 low, high;
};

// Bounds with a single token between them: the first one, from the highest rank down, at which the
// sum of weights (of ones, with `by_count`) exceeds `bound`.
__device__ Bounds first_beyond(
    const u64 (&rank)[EACH], const u64 (&weight)[EACH], bool by_count, u64 bound) {
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
        if ((by_count ? found.count : found.weight) > bound)
            bounds.low = trial, above_low = found.count;
        else bounds.high = trial, above_high = found.count;
    }
    __syncthreads();  // the next search may start with the same parity
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

__device__ __forceinline__ int
find(const u64 (&rank)[EACH], u64 (&weight)[EACH], const Settings& s, double draw) {
    u64 low = 0;
    if (0 < s.top_k && s.top_k < VOCAB) low = first_beyond(rank, weight, true, s.top_k - 1).low;
    u64 total = drop_below(low, rank, weight);
    if (s.top_p < 1)
        total = drop_below(
            first_beyond(rank, weight, false, bound_of_p(s.top_p, total)).low, rank, weight);
    const Bounds found = first_beyond(rank, weight, false, bound_of_draw(draw, total));
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (rank[i] && found.low <= rank[i] && rank[i] < found.high) return i;
    return -1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    choose(const float* logits, long long stride, const unsigned char* allowed,
        const Settings* settings, int settings_stride, long long* draws, int* chosen, int* tokens,
        int* lengths) {
    extern __shared__ __align__(16) unsigned char memory[];
    wait_for_previous();
    const int b = blockIdx.x;
    const Settings s = settings[b * settings_stride];
    const u64 counter = draws[b];
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
    const bool greedy = s.temperature == 0;
    if (!broken) {
        const double sharpness = 1 / s.temperature;
        u64 rank[EACH], weight[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int id = i * THREADS + threadIdx.x;
            rank[i] = id < VOCAB ? rank_of(logit[i], id) : 0;  // 0: there is no such token
            if (logit[i] == highest) weight[i] = u64(UNIT);
            else
                weight[i] =
                    greedy
                        ? 0
                        : u64(exp((double(logit[i]) - double(highest)) * sharpness) * UNIT + 0.5);
        }
        const double draw = greedy ? 0 : uniform(s.seed, counter);
        int found;
        if (SORTED) {
            int position[EACH];
            sort(logit, rank, weight, highest, reinterpret_cast<u64*>(memory), position);
            found = find_sorted(weight, position, reinterpret_cast<u64*>(memory), s, draw);
        } else {
            found = find(rank, weight, s, draw);
        }
        if (found >= 0) chosen[b] = tokens[b] = found * THREADS + threadIdx.x;
    }
    if (threadIdx.x == 0) {
        if (broken) chosen[b] = -1, tokens[b] = 0;
        draws[b] = counter + 1;
        if (lengths) ++lengths[b];
    }
}
