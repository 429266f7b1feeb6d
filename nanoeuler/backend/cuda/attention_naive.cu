// Causal grouped-query attention, out = softmax(q kᵀ / √E) v, the plain way: a block for every query (forward, dq) or key (dk, dv).
//
// Query i of row b sits at key position offset_b + i and sees the keys from starts_bi up to itself. The forward pass saves
// only lse, the log-sum-exp of the scores; the backward pass recomputes the probabilities p = exp(q kᵀ / √E − lse):
//
//   dv = pᵀ dout,   ds = p · (dout vᵀ − Σ dout · out),   dq = ds k / √E,   dk = dsᵀ q / √E
//
// HEAD_SIZE is compiled in. Scores of a row are kept in shared memory: no T × T array. The first rung of the ladder: every
// key is read once for each of its queries.
//
// in: query (B, T, H, E), key, value (B, S, G, E) ACTIVATION with a row stride each, starts (B, T), offset (B) int     out: out (B, T, H, E), lse (B, H, T) float
// bytes: each query reads all its keys and values, B · H · T² / 2 · 2 E · activation, from the caches where they hold them
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

struct Shape {
    int T, S, H, G;
    long long query, key, out;                    // strides of a row (one token), in elements
    long long query_batch, key_batch, out_batch;  // strides of a batch row
};

__device__ __forceinline__ float dot(const ACTIVATION* a, const ACTIVATION* b) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < HEAD_SIZE; e += WIDTH) {
        const Eight x = load(a + e), y = load(b + e);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum += x.at[i] * y.at[i];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const ACTIVATION* query, const ACTIVATION* key, const ACTIVATION* value, const int* starts, const int* offset,
                                                                ACTIVATION* out, float* lse, int T, int S, int H, int G, long long query_row,
                                                                long long key_row, long long out_row, long long query_batch, long long key_batch, long long out_batch) {
    const Shape s = {T, S, H, G, query_row, key_row, out_row, query_batch, key_batch, out_batch};
    extern __shared__ float scores[];  // (S)
    const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z, g = h / (s.H / s.G);
    const int first = starts[b * s.T + i], stop = offset[b] + i + 1;
    const ACTIVATION* q = query + b * s.query_batch + i * s.query + h * HEAD_SIZE;
    key += b * s.key_batch + g * HEAD_SIZE;
    value += b * s.key_batch + g * HEAD_SIZE;
    float top = -INFINITE;
    for (int j = first + threadIdx.x; j < stop; j += THREADS) {
        scores[j] = dot(q, key + j * s.key) * rsqrtf(float(HEAD_SIZE));
        top = fmaxf(top, scores[j]);
    }
    top = block_max<WARPS>(top);
    float total = 0;
    for (int j = first + threadIdx.x; j < stop; j += THREADS) {
        scores[j] = expf(scores[j] - top);
        total += scores[j];
    }
    total = block_sum<WARPS>(total);
    if (threadIdx.x == 0) lse[(b * s.H + h) * s.T + i] = top + logf(total);
    for (int e = threadIdx.x; e < HEAD_SIZE; e += THREADS) {
        float sum = 0;
        for (int j = first; j < stop; ++j) sum += scores[j] * to_float(value[j * s.key + e]);
        out[b * s.out_batch + i * s.out + h * HEAD_SIZE + e] = ACTIVATION(sum / total);
    }
}

// dq: ds of the query's row is kept in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_query(const ACTIVATION* dout, const ACTIVATION* query, const ACTIVATION* key, const ACTIVATION* value,
                                                                               const int* starts, const float* lse, ACTIVATION* dquery, float* delta,
                                                                               long long dquery_stride, int T, int S, int H, int G, long long query_row,
                                                                long long key_row, long long out_row, long long query_batch, long long key_batch, long long out_batch) {
    const Shape s = {T, S, H, G, query_row, key_row, out_row, query_batch, key_batch, out_batch};
    extern __shared__ float scores[];
    const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z, g = h / (s.H / s.G);
    const int first = starts[b * s.T + i], stop = i + 1;
    const ACTIVATION* q = query + b * s.query_batch + i * s.query + h * HEAD_SIZE;
    const ACTIVATION* d = dout + b * s.out_batch + i * s.out + h * HEAD_SIZE;
    key += b * s.key_batch + g * HEAD_SIZE;
    value += b * s.key_batch + g * HEAD_SIZE;
    const float log_total = lse[(b * s.H + h) * s.T + i], scale = rsqrtf(float(HEAD_SIZE));
    float sum = 0;  // Σ p · dp, which equals Σ dout · out
    for (int j = first + threadIdx.x; j < stop; j += THREADS) sum += expf(dot(q, key + j * s.key) * scale - log_total) * dot(d, value + j * s.key);
    sum = block_sum<WARPS>(sum);
    if (threadIdx.x == 0) delta[(b * s.H + h) * s.T + i] = sum;
    for (int j = first + threadIdx.x; j < stop; j += THREADS)
        scores[j] = expf(dot(q, key + j * s.key) * scale - log_total) * (dot(d, value + j * s.key) - sum) * scale;
    __syncthreads();
    for (int e = threadIdx.x; e < HEAD_SIZE; e += THREADS) {
        float gradient = 0;
        for (int j = first; j < stop; ++j) gradient += scores[j] * to_float(key[j * s.key + e]);
        dquery[(b * (long long)s.T + i) * dquery_stride + h * HEAD_SIZE + e] = ACTIVATION(gradient);
    }
}

// dk and dv of one key: the queries of its group that see it, 128 at a time.
extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_key(const ACTIVATION* dout, const ACTIVATION* query, const ACTIVATION* key, const ACTIVATION* value,
                                                                             const int* starts, const float* lse, const float* delta, ACTIVATION* dkey, ACTIVATION* dvalue,
                                                                             long long dkey_stride, int T, int S, int H, int G, long long query_row,
                                                                             long long key_row, long long out_row, long long query_batch, long long key_batch, long long out_batch) {
    const Shape s = {T, S, H, G, query_row, key_row, out_row, query_batch, key_batch, out_batch};
    __shared__ float probability[THREADS], dscore[THREADS];
    const int j = blockIdx.x, g = blockIdx.y, b = blockIdx.z, shared_by = s.H / s.G;
    const ACTIVATION* k = key + b * s.key_batch + j * s.key + g * HEAD_SIZE;
    const ACTIVATION* v = value + b * s.key_batch + j * s.key + g * HEAD_SIZE;
    const float scale = rsqrtf(float(HEAD_SIZE));
    float of_key = 0, of_value = 0;  // of element threadIdx.x
    for (int h = g * shared_by; h < (g + 1) * shared_by; ++h) {
        const ACTIVATION* q = query + b * s.query_batch + h * HEAD_SIZE;
        const ACTIVATION* d = dout + b * s.out_batch + h * HEAD_SIZE;
        const float* log_total = lse + (b * s.H + h) * s.T;
        const float* sums = delta + (b * s.H + h) * s.T;
        for (int start = j; start < s.T; start += THREADS) {
            const int i = start + threadIdx.x;
            const bool sees = i < s.T && starts[b * s.T + i] <= j;
            probability[threadIdx.x] = sees ? expf(dot(q + i * s.query, k) * scale - log_total[i]) : 0;
            dscore[threadIdx.x] = sees ? probability[threadIdx.x] * (dot(d + i * s.out, v) - sums[i]) * scale : 0;
            __syncthreads();
            if (threadIdx.x < HEAD_SIZE)
                for (int n = 0; n < THREADS && start + n < s.T; ++n) {
                    of_key += dscore[n] * to_float(q[(start + n) * s.query + threadIdx.x]);
                    of_value += probability[n] * to_float(d[(start + n) * s.out + threadIdx.x]);
                }
            __syncthreads();
        }
    }
    if (threadIdx.x < HEAD_SIZE) {
        const long long place = (b * (long long)s.T + j) * dkey_stride + g * HEAD_SIZE + threadIdx.x;
        dkey[place] = ACTIVATION(of_key);
        dvalue[place] = ACTIVATION(of_value);
    }
}
