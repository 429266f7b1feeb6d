// Chooses the next token of each row as nanoeuler/inference/sampling.py does: greedy, or by
// temperature, top-k and top-p. A block takes a row, or a cluster of blocks.
//
// Weights are exp((logit − highest) / temperature) as whole multiples of 2⁻⁴⁴, so that sums are
// exact in any order; greedy, 1 for the highest and 0 for all others. Tokens are in the order of
// falling logits, ties by rising id. Looked for is always the first token at which the sum of
// weights up to it exceeds a bound: the last one needed to reach p, or the one drawn. A vocabulary
// that fits into shared memory is sorted for that: first into bins of equal width, then by
// comparing the tokens of a bin (sorted_choice.cuh). Of a larger one only the bin is sorted that
// has the token; the blocks of a cluster share the tokens (searched_choice.cuh).
//
// in:  logits (B, V) float, rows `stride` apart; allowed (V) bytes, 1 for a token that may be
//      chosen; masks (B, ceil(V / 32)) unsigned, if MASKED: bits, the lowest first, of the tokens
//      that may be chosen in this row; settings: see there, those of row b at b · settings_stride;
//      draws (B) int64: the number of the token in its row's sequence, the counter of Philox 4×64
//      (Salmon et al. 2011), whose key holds the seed
// out: chosen (B) int, −1 where a logit is not finite or nothing is allowed; tokens (B) int: the
//      same for the next step, with 0 instead of −1; draws advance by 1, and so do lengths (B) int,
//      the tokens in the cache, where given; ring (slots, B) int in pinned memory of the host, if
//      given: chosen once more, row b in slot slot[b], which goes on to the next
// bytes: B · V · 4, of a large vocabulary that is not HELD up to five times from the L2, and twice
//        more each time that a bin has too many tokens to be sorted; the rest stays on the chip
//
// Compiled in: VOCAB, THREADS of a block, BINS, SHARED_BYTES of its dynamic shared memory,
// CANDIDATES of a bin that are sorted, 0 where all tokens are, CLUSTER, the blocks of a row, HELD,
// whether their shared memory has room for a large vocabulary's logits, and MASKED.
#include "common.cuh"
#include "overlap.cuh"

typedef unsigned long long u64;

constexpr int STRIDE = CLUSTER * THREADS, EACH = (VOCAB + STRIDE - 1) / STRIDE,
              WARPS = THREADS / 32;  // tokens of a thread: every STRIDE-th
__device__ constexpr int bits(int number) { return number < 2 ? number : 1 + bits(number / 2); }
constexpr int ID_BITS = bits(VOCAB - 1);
constexpr bool SORTED = CANDIDATES == 0;
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

// Tokens of one row that may be chosen.
struct Allowed {
    const unsigned char* bytes;  // (V)
    const unsigned* mask;        // bits
    __device__ __forceinline__ bool operator[](int id) const {
        return bytes[id] && (!MASKED || mask[id / 32] >> id % 32 & 1);
    }
};

// −∞ where the token may not be chosen; one load does not wait for the other
__device__ __forceinline__ float read_logit(const float* logits, Allowed allowed, int id) {
    const float logit = logits[id];
    return allowed[id] ? logit : -INFINITE;
}

#include "sorted_choice.cuh"
#include "searched_choice.cuh"

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS)
    choose(const float* logits, long long stride, const unsigned char* bytes,
        const unsigned* masks, const Settings* settings, int settings_stride, long long* draws,
        int* chosen, int* tokens, int* lengths, int* ring, int* slot, int slots) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ double draw;
    __shared__ int likeliest;
    let_next_start();
    const int b = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const Settings& s = settings[b * settings_stride];
    const Allowed allowed = {bytes, masks + (MASKED ? b * ((VOCAB + 31) / 32) : 0)};
    const bool greedy = s.temperature == 0;
    // One thread draws while the logits are still being computed, as it takes 2 µs.
    const u64 early = draws[b];
    if (threadIdx.x == 0 && !greedy) draw = uniform(s.seed, early);
    if (threadIdx.x == 0) likeliest = VOCAB;
    cluster_sync();  // no block may write to one that has not started
    wait_for_previous();
    // another choice of this row may have been on its way
    if (threadIdx.x == 0 && draws[b] != early) draw = uniform(s.seed, draws[b]);
    // ahead, where there are registers to keep it
    const int next_slot = SORTED && ring ? slot[b] : 0;
    auto take = [=](int id) {  // for one thread
        chosen[b] = id, tokens[b] = max(id, 0);
        if (!ring) return;
        const int at = SORTED ? next_slot : slot[b];
        ring[at * (gridDim.x / CLUSTER) + b] = id;
        slot[b] = at + 1 < slots ? at + 1 : 0;
    };
    bool broken = false;
    if (SORTED) {
        float logit[EACH], highest = -INFINITE;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int id = i * THREADS + threadIdx.x;
            logit[i] =
                id < VOCAB ? read_logit(logits + b * stride, allowed, id) : -INFINITE;
            broken |= !(logit[i] < INFINITE);
            highest = fmaxf(highest, logit[i]);
        }
        highest = block_max<WARPS>(highest);
        broken = __syncthreads_or(broken) || highest == -INFINITE;
        if (!broken && greedy) {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (logit[i] == highest) atomicMin(&likeliest, i * THREADS + threadIdx.x);
            __syncthreads();
            if (threadIdx.x == 0) take(likeliest);
        } else if (!broken) {
            const double sharpness = 1 / s.temperature;
            u64 rank[EACH], weight[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int id = i * THREADS + threadIdx.x;
                rank[i] = id < VOCAB ? rank_of(logit[i], id) : 0;  // 0: there is no such token
                if (logit[i] == highest) weight[i] = u64(UNIT);
                else
                    weight[i] =
                        u64(exp((double(logit[i]) - double(highest)) * sharpness) * UNIT + 0.5);
            }
            int position[EACH];
            sort(logit, rank, weight, highest, reinterpret_cast<u64*>(memory), position);
            const int found =
                find_sorted(weight, position, reinterpret_cast<u64*>(memory), s, draw);
            if (found >= 0) take(found * THREADS + threadIdx.x);
        }
    } else {
        const int id = choose_searched(
            logits + b * stride, allowed, s, draw, reinterpret_cast<u64*>(memory), rank);
        if (rank > 0) return;
        broken = id < 0;
        if (threadIdx.x == 0 && !broken) take(id);
    }
    if (threadIdx.x == 0) {
        if (broken) take(-1);
        ++draws[b];
        if (lengths) ++lengths[b];
    }
}
