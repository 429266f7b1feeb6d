// Logits of head 0 for a few rows: the final norm and the product with the vocabulary, computed as
// decode_layer.cu computes its products.
//
// in:  x (B, DIM) RESIDUAL, norm (DIM) float, weight (vocabulary, DIM) ACTIVATION
// out: logits (B, vocabulary) float
// bytes: vocabulary · DIM · activation
//
// Compiled in: the constants of few_rows.cuh.
#include "few_rows.cuh"

// A warp takes 2 · PAIRS entries of the vocabulary, whose storage is a multiple of eight.
extern "C" __global__ void __launch_bounds__(WARPS * 32, ROWS == 1 ? 2 : 1)
    head(const RESIDUAL* x, const float* norm, float epsilon, const ACTIVATION* weight,
        float* logits, int vocabulary, int rows) {
    __shared__ __align__(16) ACTIVATION shared[ROWS > 1 ? ROWS * DIM : WIDTH];
    const int first = 2 * PAIRS * warp_of_grid();
    const bool there = first < vocabulary;
    let_next_start();
    Weights<2 * PAIRS, DIM> weights;
#pragma unroll
    for (int g = 0; g < 2 * PAIRS; ++g)
        if (there) weights.row[g].fetch(weight + size_t(first + g) * DIM);
    wait_for_previous();
    const Inputs<DIM> inputs = normalized(shared, x, norm, epsilon, rows);
    if (!there) return;
    const float logit = weights.times(inputs);
    if (weights.writes(rows))
        logits[size_t(weights.product() / (2 * PAIRS)) * vocabulary + first +
               weights.product() % (2 * PAIRS)] = logit;
}
