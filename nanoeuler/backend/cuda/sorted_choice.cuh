// The choice from a vocabulary that fits into shared memory: all its tokens are sorted. What the
// names mean: sampling.cu.

constexpr int BINS_EACH = BINS / THREADS, RANKS = VOCAB + VOCAB % 2;  // bins start at 16 bytes
static_assert(!SORTED || RANKS * 8 + (BINS + 1) * 4 <= SHARED_BYTES, "ranks, then bins");
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

// Positions of the tokens in sorted order; −1 for those of no weight. `memory`: RANKS ranks, then
// BINS + 1 counts.
__device__ __forceinline__ void sort(const float (&logit)[EACH], const u64 (&rank)[EACH],
    const u64 (&weight)[EACH], float highest, u64* memory, int (&position)[EACH]) {
    u64* ranks = memory;
    unsigned* bins = reinterpret_cast<unsigned*>(ranks + RANKS);
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
