// Logits for 5 to 64 rows: the final norm and the product with the vocabulary of a head, computed
// as many_rows_layer.cu computes its products.
//
// in:  x (B, DIM) RESIDUAL, norm and, of a GPT-2, norm_bias (DIM) float, weight (vocabulary, DIM)
//      ACTIVATION
// out: logits (B, vocabulary) float
// bytes: vocabulary · DIM · activation
//
// Compiled in: the constants of many_rows.cuh, DIM; HEAD_SPLIT, HEAD_TILES and HEAD_BYTES.
#include "many_rows.cuh"

using Head = Product<DIM, HEAD_SPLIT, HEAD_TILES, true>;
static_assert(Head::BYTES == HEAD_BYTES, "what a launch asks for");

extern "C" __global__ void __cluster_dims__(HEAD_SPLIT, 1, 1) __launch_bounds__(THREADS, 2)
    head(const RESIDUAL* x, const float* norm, const float* norm_bias, float epsilon,
        const ACTIVATION* weight, float* logits, int vocabulary, int rows) {
    const Head product;
    let_next_start();
    product.fetch(
        weight, [](int tile, int half) { return tile * 32 + half * 16; },
        [=](int) { return vocabulary; });
    product.fetch_norm({norm, norm_bias, epsilon});
    wait_for_previous();
    product.take_normed(x, epsilon, rows);
    product.multiply();
#pragma unroll
    for (int i = 0; i < Head::ITEMS; ++i) {
        const Item item = product.item(i, rows);
        if (!item.there) continue;
        const float inverse = product.inverse_rms(item, epsilon);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = (product.first_tile + item.tile) * 32 + half * 16 + item.column;
            if (column < vocabulary)
                store_four(logits + size_t(item.row) * vocabulary + column,
                    inverse * product.result(item, half));
        }
    }
}
