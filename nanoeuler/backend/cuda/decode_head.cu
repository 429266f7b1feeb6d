// Logits of head 0 for a few rows: the final norm and the product with the vocabulary, computed as
// decode_layer.cu computes its products.
//
// in:  x (B, DIM) RESIDUAL, norm and, of a GPT-2, norm_bias (DIM) float, weight (vocabulary, DIM)
//      ACTIVATION
// out: logits (B, vocabulary) float
// bytes: vocabulary · DIM · activation
//
// Compiled in: the constants of few_rows.cuh.
#include "few_rows.cuh"

// A warp takes 2 · PAIRS entries of the vocabulary, whose storage is a multiple of eight, and then
// every so many: while it multiplies, the next ones are on their way.
extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    head(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, float* logits, int vocabulary, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * DIM : WIDTH];
    constexpr int GROUP = 2 * PAIRS;
    const int stride = GROUP * gridDim.x * WARPS;
    int first = GROUP * warp_of_grid();
    let_next_start();
    Weights<GROUP, DIM> weights, next;
    auto fetch = [&](int from) {
#pragma unroll
        for (int g = 0; g < GROUP; ++g)
            if (from < vocabulary) next.row[g].fetch(weight + size_t(from + g) * DIM);
    };
    fetch(first);
    wait_for_previous();
    const Inputs<DIM> inputs = normalized(shared, x, {norm, norm_bias, epsilon}, rows);
    for (; first < vocabulary; first += stride) {
        weights = next;
        fetch(first + stride);
        const float logit = weights.times(inputs);
        if (weights.writes(rows))
            logits[size_t(weights.product() / GROUP) * vocabulary + first +
                   weights.product() % GROUP] = logit;
    }
}
