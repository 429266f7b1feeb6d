// The choice from a large vocabulary: only the bin that has the token is sorted. The blocks of a
// cluster share the tokens and the sums; the first one decides. The names' meaning: sampling.cu.

constexpr int NARROW_BINS = THREADS;
constexpr int SEARCHED_BYTES = 12 * BINS + 12 * NARROW_BINS + 16 * CANDIDATES;
static_assert(SORTED || SEARCHED_BYTES + HELD * EACH * THREADS * 4 <= SHARED_BYTES,
    "ranks and weights, sums and counts of bins, twice, then logits");
static_assert(SORTED || BINS % THREADS == 0, "a thread has as many bins as any other");
static_assert(SORTED || NARROW_BINS % CLUSTER == 0, "and a block");

// Of the block, in every thread
__device__ __forceinline__ u64 block_max(u64 value) {
    __shared__ u64 found[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
    __syncthreads();  // an earlier value may still be in use
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = value;
    __syncthreads();
    value = found[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) value = max(value, found[warp]);
    return value;
}

// A row's logits, and this block's number in the cluster. A thread has every STRIDE-th, and keeps
// them in shared memory if they are HELD.
struct Row {
    const float* logits;
    Allowed allowed;
    int rank;
    float* held;

    __device__ __forceinline__ int id_at(int i) const {
        return i * STRIDE + rank * THREADS + threadIdx.x;
    }
    __device__ __forceinline__ float at(int i) const {
        return id_at(i) < VOCAB ? read_logit(logits, allowed, id_at(i)) : -INFINITE;
    }
    // Calls use(id, logit) for every token of this thread. Several are under way at a time.
    template <typename Use>
    __device__ __forceinline__ void each(const Use& use) const {
        constexpr int AT_ONCE = 8;
#pragma unroll 1
        for (int first = 0; first < EACH; first += AT_ONCE) {
            float logit[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (first + i < EACH)
                    logit[i] = HELD ? held[(first + i) * THREADS] : at(first + i);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (first + i < EACH && id_at(first + i) < VOCAB) use(id_at(first + i), logit[i]);
        }
    }
};

// All threads of the cluster wait for each other, and see what they wrote.
__device__ __forceinline__ void cluster_sync() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

// The same shared memory, of block `rank` of the cluster
template <typename T>
__device__ __forceinline__ T* in_block(T* shared, int rank) {
#if CLUSTER > 1
    asm("mapa.u64 %0, %1, %2;" : "=l"(shared) : "l"(shared), "r"(rank));
#endif
    return shared;
}

// The highest value of all blocks, in every thread
__device__ __forceinline__ u64 cluster_max(u64 value, int rank) {
    __shared__ u64 found[CLUSTER];
    value = block_max(value);
    if (CLUSTER == 1) return value;
    if (threadIdx.x < CLUSTER) in_block(found, threadIdx.x)[rank] = value;
    cluster_sync();
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) value = max(value, found[block]);
    return value;
}

// Weight of some tokens, and how many have any
struct Passed {
    u64 weight;
    unsigned count;

    __device__ __forceinline__ Passed operator+(const Passed& other) const {
        return {weight + other.weight, count + other.count};
    }
    __device__ __forceinline__ u64 measure(bool by_count) const {
        return by_count ? count : weight;
    }
};

// What is in COUNT bins, the likeliest tokens first. Sums are in halves, as shared memory adds 32
// bits at once.
template <int COUNT>
struct Bins {
    unsigned *low, *high, *counts;

    __device__ __forceinline__ explicit Bins(unsigned* memory)
        : low(memory), high(low + COUNT), counts(high + COUNT) {}

    __device__ __forceinline__ void clear() const {
        for (int i = threadIdx.x; i < 3 * COUNT; i += THREADS) low[i] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ void add(int bin, u64 weight) const {
        const unsigned part = unsigned(weight), before = atomicAdd(low + bin, part),
                       carry = before + part < before;
        const unsigned rest = unsigned(weight >> 32) + carry;
        if (rest) atomicAdd(high + bin, rest);
        atomicAdd(counts + bin, 1u);
    }
    __device__ __forceinline__ Passed at(int bin) const {
        return {u64(high[bin]) << 32 | low[bin], counts[bin]};
    }
    __device__ __forceinline__ void put(int bin, const Passed& passed) const {
        low[bin] = unsigned(passed.weight), high[bin] = unsigned(passed.weight >> 32);
        counts[bin] = passed.count;
    }

    // The first block of the cluster gets what is in all blocks' bins up to each. Each block adds
    // up a share of them.
    __device__ __forceinline__ void collect(int rank) const {
        cluster_sync();
        if (CLUSTER > 1) {
            for (int bin = rank * (COUNT / CLUSTER) + threadIdx.x;
                 bin < (rank + 1) * (COUNT / CLUSTER); bin += THREADS) {
                Passed sum = {0, 0};
#pragma unroll
                for (int block = 0; block < CLUSTER; ++block)
                    sum = sum + Bins(in_block(low, block)).at(bin);
                Bins(in_block(low, 0)).put(bin, sum);
            }
            cluster_sync();
        }
        constexpr int EACH_BIN = COUNT / THREADS;
        const int first = threadIdx.x * EACH_BIN;
        Passed share = {0, 0};
#pragma unroll
        for (int i = 0; i < EACH_BIN; ++i) share = share + at(first + i);
        Passed sum = {sum_before(share.weight), sum_before(share.count)};
#pragma unroll
        for (int i = 0; i < EACH_BIN; ++i) sum = sum + at(first + i), put(first + i, sum);
        __syncthreads();
    }
};

// A bin, what lies before it, and how many tokens are in it
struct Picked {
    int bin;
    Passed before;
    unsigned inside;
};

__device__ __forceinline__ float logit_of(u64 rank) {
    const unsigned ordered = unsigned(rank >> ID_BITS);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered);
}

// All blocks of the cluster search together; only the first one knows sums, and bounds for them.
class Search {
    Row row;
    float highest, scale;
    double sharpness;
    u64 *ranks, *weights;  // of CANDIDATES
    Bins<BINS> wide;
    Bins<NARROW_BINS> narrow;

    __device__ __forceinline__ u64 weight_of(float logit) const {
        if (logit == highest) return u64(UNIT);
        return u64(exp((double(logit) - double(highest)) * sharpness) * UNIT + 0.5);
    }
    // Below exp(−32) no token has a weight.
    __device__ __forceinline__ int bin_of(float logit) const {
        const float at = (highest - logit) * scale;
        return logit == highest ? 0 : at < BINS - 1 ? int(at) : BINS - 1;
    }

    // The bin with the first token at which the sum of weights (of ones, with `by_count`) exceeds
    // `bound`, behind what was passed.
    template <int COUNT>
    __device__ __forceinline__ Picked
    pick(const Bins<COUNT>& bins, bool by_count, u64 bound, const Passed& passed) const {
        __shared__ Picked picked;
        for (int bin = threadIdx.x; row.rank == 0 && bin < COUNT; bin += THREADS) {
            const Passed before = bin ? passed + bins.at(bin - 1) : passed,
                         behind = passed + bins.at(bin);
            if (before.measure(by_count) <= bound && bound < behind.measure(by_count))
                for (int block = 0; block < CLUSTER; ++block)
                    *in_block(&picked, block) = {bin, before, behind.count - before.count};
        }
        cluster_sync();
        return picked;
    }

public:
    __device__ __forceinline__
    Search(const Row& row, float highest, double sharpness, u64* memory)
        : row(row), highest(highest), scale(float(sharpness) * (BINS / 32)),
          sharpness(sharpness), ranks(memory), weights(ranks + CANDIDATES),
          wide(reinterpret_cast<unsigned*>(weights + CANDIDATES)), narrow(wide.low + 3 * BINS) {
        wide.clear();
        row.each([&](int id, float logit) {
            if (bin_of(logit) == BINS - 1) return;
            const u64 weight = weight_of(logit);
            if (weight) wide.add(bin_of(logit), weight);
        });
        wide.collect(row.rank);
    }
    __device__ __forceinline__ Passed all() const { return wide.at(BINS - 1); }

    // Rank of the first token at which the sum of weights (of ones, with `by_count`) exceeds
    // `bound`, and the sum of weights up to and including it.
    __device__ __forceinline__ u64 first_beyond(bool by_count, u64 bound, u64& sum) const {
        __shared__ unsigned found;
        __shared__ u64 found_rank, found_sum, low, high;  // ranks from low to high are looked at
        if (threadIdx.x == 0) found = 0, low = 0, high = ~0ull;
        Picked picked = pick(wide, by_count, bound, {0, 0});
        const int bin = picked.bin;
        auto each = [&](const auto& use) {
            row.each([&](int id, float logit) {
                const u64 token = rank_of(logit, id);
                if (bin_of(logit) == bin && low <= token && token <= high) {
                    const u64 weight = weight_of(logit);
                    if (weight) use(token, weight);
                }
            });
        };
        while (picked.inside > CANDIDATES) {
            // many equal or nearly equal logits: bins of equal width in ranks
            u64 least = ~0ull, most = 0;
            each([&](u64 token, u64) { least = min(least, token), most = max(most, token); });
            least = ~cluster_max(~least, row.rank);
            cluster_sync();  // all have seen it
            most = cluster_max(most, row.rank);
            int shift = 0;
            while ((most - least) >> shift >= NARROW_BINS) ++shift;
            narrow.clear();
            each([&](u64 token, u64 weight) { narrow.add(int((most - token) >> shift), weight); });
            narrow.collect(row.rank);
            picked = pick(narrow, by_count, bound, picked.before);
            if (threadIdx.x == 0) {
                high = most - (u64(picked.bin) << shift);
                low = max(least, high - min(high, (1ull << shift) - 1));
            }
            __syncthreads();
        }
        each([&](u64 token, u64 weight) {
            const unsigned slot = atomicAdd(in_block(&found, 0), 1u);
            in_block(ranks, 0)[slot] = token, in_block(weights, 0)[slot] = weight;
        });
        cluster_sync();
        if (row.rank > 0) return 0;
        for (unsigned mine = threadIdx.x; mine < found; mine += THREADS) {
            Passed here = picked.before;
            for (unsigned other = 0; other < found; ++other)
                if (ranks[other] > ranks[mine]) here = here + Passed{weights[other], 1};
            const Passed behind = here + Passed{weights[mine], 1};
            if (here.measure(by_count) <= bound && bound < behind.measure(by_count))
                found_rank = ranks[mine], found_sum = behind.weight;
        }
        __syncthreads();
        sum = found_sum;
        const u64 result = found_rank;
        __syncthreads();  // the next search may find something else
        return result;
    }
};

__device__ __forceinline__ int id_of(u64 rank) {
    return (1 << ID_BITS) - 1 - int(rank & ((1 << ID_BITS) - 1));
}

// Looks for the last token that top-k leaves, then for the last one that top-p leaves, then for the
// one drawn.
__device__ __forceinline__ int find(const Search& search, const Settings& s, const double& draw) {
    u64 total = search.all().weight;
#pragma unroll 1
    for (int step = 0;; ++step) {
        u64 bound;
        if (step == 0) {
            if (s.top_k <= 0 || s.top_k >= VOCAB) continue;
            bound = min(u64(s.top_k), u64(search.all().count)) - 1;
        } else if (step == 1) {
            if (s.top_p >= 1) continue;
            bound = bound_of_p(s.top_p, total);
        } else {
            bound = bound_of_draw(draw, total);
        }
        const u64 token = search.first_beyond(step == 0, bound, total);
        if (step == 2) return id_of(token);
    }
}

// The id of the token, in every thread of the first block; −1 where a logit is not finite or
// nothing is allowed.
__device__ __forceinline__ int choose_searched(const float* logits, Allowed allowed,
    const Settings& s, const double& draw, u64* memory, int rank) {
    constexpr u64 BROKEN = ~0ull;  // above any rank
    const Row row = {logits, allowed, rank,
        reinterpret_cast<float*>(memory) + SEARCHED_BYTES / 4 + threadIdx.x};
    if (HELD)
#pragma unroll 8
        for (int i = 0; i < EACH; ++i) row.held[i * THREADS] = row.at(i);
    u64 best = 0;
    row.each([&](int id, float logit) {
        best = max(best, logit < INFINITE ? rank_of(logit, id) : BROKEN);
    });
    best = cluster_max(best, rank);
    const float highest = logit_of(best);
    if (best == BROKEN || highest == -INFINITE) return -1;
    if (s.temperature == 0) return id_of(best);
    return find(Search(row, highest, 1 / s.temperature, memory), s, draw);
}
