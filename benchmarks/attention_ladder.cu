// The first rung: one thread per query, everything read straight from global memory, without tensor
// cores, shared memory or tiles. Even so it keeps no row of scores: the softmax is computed as the
// keys go by (Milakov & Gimelshein 2018), as the tiled kernels do it tile by tile.
//
// query (B, T, H, E), key and value (B, T, G, E), out (B, T, H, E), contiguous float32. Every query
// reads every key it sees: B·H·T²/2 · 2E · 4 bytes, from caches at best, for 4E operations a pair,
// which is one operation for two bytes.

extern "C" __global__ void attention_one_thread_per_query(const float* query, const float* key,
    const float* value, float* out, int T, int heads, int kv_heads) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, batch = blockIdx.z;
    if (i >= T) return;
    int kv_head = head / (heads / kv_heads);
    const float* q = query + ((long long)(batch * T + i) * heads + head) * HEAD_SIZE;
    float sums[HEAD_SIZE] = {}, top = -1e30f, total = 0;
    for (int j = 0; j <= i; j++) {
        const float* k = key + ((long long)(batch * T + j) * kv_heads + kv_head) * HEAD_SIZE;
        const float* v = value + ((long long)(batch * T + j) * kv_heads + kv_head) * HEAD_SIZE;
        float score = 0;
        for (int e = 0; e < HEAD_SIZE; e++) score += q[e] * k[e];
        score *= rsqrtf(HEAD_SIZE);
        float highest = fmaxf(top, score), shrink = expf(top - highest),
              weight = expf(score - highest);
        top = highest, total = total * shrink + weight;
        for (int e = 0; e < HEAD_SIZE; e++) sums[e] = sums[e] * shrink + weight * v[e];
    }
    for (int e = 0; e < HEAD_SIZE; e++)
        out[((long long)(batch * T + i) * heads + head) * HEAD_SIZE + e] = sums[e] / total;
}
