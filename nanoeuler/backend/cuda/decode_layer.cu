// A layer for a few rows, each a new token: the products, and everything between them. TOKENS rows
// in turn belong to one sequence.
//
//   project    q, k, v = W_qkv norm(x);  q and k rotated;  k and v to their slot in the cache
//              norm(x) = w · x / √(mean(x²) + ε);  with QK_NORM q and k stay as they are: slots.cuh
//   (decode_attention.cu attends to the cache and leaves parts)
//   output     x ← x + h · W_o attended,  attended put together from the parts
//   gate_up    hidden = silu(W_gate norm(x)) · W_up norm(x)
//   down       x ← x + h · W_down hidden
//
// Of a GPT-2 norm(x) is LayerNorm, every product has a bias, nothing is rotated, and
//
//   up         hidden = gelu(W_up norm(x) + c)
//
// few_rows.cuh says how a weight is read and meets the rows of x.
//
// in:  x (B, DIM) RESIDUAL, changed by `output` and `down`; weights (outputs, inputs) ACTIVATION;
//      w and, of a GPT-2, b (DIM) float, biases (outputs) ACTIVATION, else null; lengths
//      (B / TOKENS) int: the slot of a sequence's first new token; cosine, sine (positions,
//      HEAD_SIZE / 2) float; parts and shares of decode_attention.cu
// out: query (B, QUERY_HEADS · HEAD_SIZE), hidden (B, FFN) ACTIVATION; keys, values (B / TOKENS, S,
//      KV_HEADS, HEAD_SIZE) ACTIVATION
// bytes: outputs · inputs · activation, each weight once
//
// Compiled in: those of few_rows.cuh, FFN, HEADS, KV_HEADS, HEAD_SIZE, KEY and VALUE (first rows of
// keys and values in W_qkv), UP (of W_up in the packed W_gate_up), PARTS (the most parts of
// attention), TOKENS, QK_NORM and GPT2.
#include "few_rows.cuh"
#include "gelu.cuh"
#include "slots.cuh"

constexpr int ATTENDED = HEADS * HEAD_SIZE, HALF = HEAD_SIZE / 2;

// Known before the kernel in front has ended. Models without biases have null.
__device__ __forceinline__ float bias_of(const ACTIVATION* bias, int output) {
    return GPT2 ? float(bias[output]) : 0.0f;
}

// A warp takes the two rows of W_qkv that rotary positions rotate into each other.
extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    project(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, const ACTIVATION* bias, const int* lengths, const float* cosine,
        const float* sine, ACTIVATION* query, ACTIVATION* keys, ACTIVATION* values, int rows,
        int capacity, long long cache_batch) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * DIM : WIDTH];
    const int pair = warp_of_grid(), head = pair / HALF, column = pair % HALF,
              kind = head < HEADS              ? 0
                     : head < HEADS + KV_HEADS ? 1
                                               : 2;
    const bool there = head < HEADS + 2 * KV_HEADS;
    const int kv_head = head - HEADS - (kind == 2 ? KV_HEADS : 0);
    const int first =
        column + (kind == 0 ? head * HEAD_SIZE : (kind == 1 ? KEY : VALUE) + kv_head * HEAD_SIZE);
    let_next_start();
    Weights<2, DIM> weights;
#pragma unroll
    for (int g = 0; g < 2; ++g)
        if (there) weights.row[g].fetch(weight + size_t(first + g * HALF) * DIM);
    // lengths change between tokens only: no need to wait for them
    const int b = weights.product() / 2, second = weights.product() % 2,
              slot = b < rows ? slot_of(lengths, b) : capacity;
    float cos = 1, sin = 0;
    if (!QK_NORM && !GPT2 && kind < 2 && slot < capacity)
        cos = cosine[size_t(slot) * HALF + column], sin = sine[size_t(slot) * HALF + column];
    const float constant = there ? bias_of(bias, first + second * HALF) : 0.0f;
    wait_for_previous();
    const Inputs<DIM> inputs = normalized(shared, x, {norm, norm_bias, epsilon}, rows);
    if (!there) return;
    float value = weights.times(inputs);
    if (GPT2) value += constant;
    const float partner = __shfl_xor_sync(WHOLE_WARP, value, weights.LANES);
    if (!weights.writes(rows) || slot >= capacity) return;
    value = value * cos + (second ? partner : -partner) * sin;
    const int element = column + second * HALF;
    if (kind <= QK_NORM)  // queries, and with norms of heads keys
        query[b * (QUERY_HEADS * HEAD_SIZE) + head * HEAD_SIZE + element] = ACTIVATION(value);
    else
        (kind == 1 ? keys : values)[b / TOKENS * cache_batch +
                                    (size_t(slot) * KV_HEADS + kv_head) * HEAD_SIZE + element] =
            ACTIVATION(value);
}

// Puts the parts of attention (see decode_attention.cu) together, in rows:
// out = Σ 2^(top − highest) · part / Σ 2^(top − highest) · total.
// A thread takes COLUMNS at a few offsets at once, so that their parts are under way together.
// Parts past a row's end are fetched and not used.
__device__ __forceinline__ void put_together(ACTIVATION* shared, const float* parts,
    const float2* shares, const int* lengths, int span, int splits, int rows) {
    constexpr int COLUMNS = 4, AT_ONCE = 8 / PARTS, PER_HEAD = HEAD_SIZE / COLUMNS;
    const int count = rows * HEADS * PER_HEAD;
    for (int start = threadIdx.x; start < count; start += AT_ONCE * blockDim.x) {
        float4 part[AT_ONCE][PARTS];
        float2 share[AT_ONCE][PARTS];
        int there[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            const int at = min(start + u * int(blockDim.x), count - 1),
                      head = at / PER_HEAD;  // head: of all rows
            there[u] = min(slot_of(lengths, head / HEADS) / span + 1, splits);
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                const size_t index = size_t(head) * splits + min(p, splits - 1);
                share[u][p] = shares[index];
                part[u][p] = *reinterpret_cast<const float4*>(
                    parts + index * HEAD_SIZE + at % PER_HEAD * COLUMNS);
            }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
            float highest = share[u][0].x, total = 0;
            float4 sum = {};
#pragma unroll
            for (int p = 1; p < PARTS; ++p)
                if (p < there[u]) highest = fmaxf(highest, share[u][p].x);
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
                if (p < there[u]) {
                    const float factor = exp2f(share[u][p].x - highest);
                    total = fmaf(factor, share[u][p].y, total);
                    sum.x = fmaf(factor, part[u][p].x, sum.x);
                    sum.y = fmaf(factor, part[u][p].y, sum.y);
                    sum.z = fmaf(factor, part[u][p].z, sum.z);
                    sum.w = fmaf(factor, part[u][p].w, sum.w);
                }
            const int at = start + u * int(blockDim.x);
            if (at < count) {
                ACTIVATION* to = shared + at * COLUMNS;
                to[0] = ACTIVATION(sum.x / total), to[1] = ACTIVATION(sum.y / total);
                to[2] = ACTIVATION(sum.z / total), to[3] = ACTIVATION(sum.w / total);
            }
        }
    }
    __syncthreads();
}

// x ← x + h · (product + constant), for row `first` of the weight.
template <int SIZE>
__device__ __forceinline__ void add_product(const Weights<1, SIZE>& weights,
    const Inputs<SIZE>& inputs, int first, float constant, float step_size, RESIDUAL* x,
    int rows) {
    RESIDUAL* target = x + weights.product() * DIM + first;
    const bool writes = weights.writes(rows);
    const float before = writes ? float(*target) : 0.0f;  // read while the product is computed
    float product = weights.times(inputs);
    if (GPT2) product += constant;
    if (writes) *target = RESIDUAL(before + step_size * product);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    output(const float* parts, const float2* shares, const int* lengths, int span, int splits,
        const ACTIVATION* weight, const ACTIVATION* bias, float step_size, RESIDUAL* x, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS * ATTENDED];
    const int first = warp_of_grid();
    const bool there = first < DIM;
    let_next_start();
    Weights<1, ATTENDED> weights;
    if (there) weights.row[0].fetch(weight + size_t(first) * ATTENDED);
    const float constant = there ? bias_of(bias, first) : 0.0f;
    wait_for_previous();
    put_together(shared, parts, shares, lengths, span, splits, rows);
    if (!there) return;
    Inputs<ATTENDED> inputs;
    inputs.shared = shared;
    if (ROWS == 1) inputs.single.fetch(shared);
    add_product(weights, inputs, first, constant, step_size, x, rows);
}

#if GPT2
// A warp takes 2 · PAIRS elements of `hidden`.
extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    up(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, const ACTIVATION* bias, ACTIVATION* hidden, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * DIM : WIDTH];
    constexpr int GROUP = 2 * PAIRS;
    const int first = GROUP * warp_of_grid();
    const bool there = first < FFN;
    let_next_start();
    Weights<GROUP, DIM> weights;
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
        if (there) weights.row[g].fetch(weight + size_t(first + g) * DIM);
    const int output = first + weights.product() % GROUP;
    const float constant = there ? bias_of(bias, output) : 0.0f;
    wait_for_previous();
    const Inputs<DIM> inputs = normalized(shared, x, {norm, norm_bias, epsilon}, rows);
    if (!there) return;
    const float value = weights.times(inputs) + constant;
    if (weights.writes(rows))
        hidden[weights.product() / GROUP * FFN + output] = ACTIVATION(value * gelu_sigma(value));
}
#else
// A warp takes PAIRS elements of `hidden`: as many rows of W_gate and the same of W_up.
extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    gate_up(const RESIDUAL* x, const float* norm, float epsilon, const ACTIVATION* weight,
        ACTIVATION* hidden, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * DIM : WIDTH];
    const int first = PAIRS * warp_of_grid();
    const bool there = first < FFN;
    let_next_start();
    Weights<2 * PAIRS, DIM> weights;
#pragma unroll
    for (int g = 0; g < 2 * PAIRS; ++g)
        if (there) weights.row[g].fetch(weight + size_t((g % 2 ? UP : 0) + first + g / 2) * DIM);
    wait_for_previous();
    const Inputs<DIM> inputs = normalized(shared, x, {norm, nullptr, epsilon}, rows);
    if (!there) return;
    const float z = weights.times(inputs), up = __shfl_xor_sync(WHOLE_WARP, z, weights.LANES);
    if (weights.writes(rows) && weights.product() % 2 == 0)
        hidden[weights.product() / (2 * PAIRS) * FFN + first +
               weights.product() % (2 * PAIRS) / 2] = ACTIVATION(gated_by_division(z, up));
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    down(const ACTIVATION* hidden, const ACTIVATION* weight, const ACTIVATION* bias,
        float step_size, RESIDUAL* x, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * FFN : WIDTH];
    const int first = warp_of_grid();
    const bool there = first < DIM;
    let_next_start();
    Weights<1, FFN> weights;
    if (there) weights.row[0].fetch(weight + size_t(first) * FFN);
    const float constant = there ? bias_of(bias, first) : 0.0f;
    wait_for_previous();
    Inputs<FFN> inputs;
    inputs.shared = shared;
    if (ROWS == 1) {
        inputs.single.fetch(hidden);
    } else {
        constexpr int AT_ONCE = 4;
        const int count = rows * FFN / WIDTH;
        for (int start = threadIdx.x; start < count; start += AT_ONCE * blockDim.x) {
            Raw<ACTIVATION> vector[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                vector[u].fetch(hidden + min(start + u * int(blockDim.x), count - 1) * WIDTH);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                if (start + u * int(blockDim.x) < count)
                    store(shared + (start + u * int(blockDim.x)) * WIDTH, vector[u].value());
        }
        __syncthreads();
    }
    if (there) add_product(weights, inputs, first, constant, step_size, x, rows);
}
