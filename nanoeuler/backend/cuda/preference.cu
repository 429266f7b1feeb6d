// The weights of head 0 with which −Σ weights · logprobs has the gradient of the preference loss,
// and that loss (Rafailov et al. 2023, eq. 7); see the op `preference` of backend/reference.py.
// Pair p of row r has its chosen tokens from span 0 to span 1 and its rejected ones from there to
// span 2:
//
//   z = r_chosen − r_rejected − margin,   r = scale · (Σ logprobs − reference),
//   loss = share · (−(1 − ε) log σ(z) − ε log σ(−z))
//
// A block takes a pair; a second kernel adds the losses up in their order. All sums are float64.
//
// in:  logprobs (R, T, K) float, spans (R, P, 3) int, reference (R, P, 2) double,
//      scales (R, P, 2), shares (R, P) float
// out: weights (R, T, K) float inside the spans, losses (2) double, added to
// bytes: 8 · tokens of the spans
//
// Compiled in: THREADS of a block.
#include "common.cuh"

constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ double softplus(double z) {
    return z > 0 ? z + log1p(exp(-z)) : log1p(exp(z));
}  // log(1 + exp z) = −log σ(−z)

extern "C" __global__ void __launch_bounds__(THREADS)
    preference(const float* logprobs, const int* spans, const double* reference,
        const float* scales, const float* shares, double margin, double smoothing, float* weights,
        double* pair_losses, int pairs, int length, int heads) {
    const int pair = blockIdx.x, row = pair / pairs;
    const double share = shares[pair];
    if (share == 0) {
        if (threadIdx.x == 0) pair_losses[pair] = 0;
        return;
    }
    const int first = spans[3 * pair], middle = spans[3 * pair + 1], last = spans[3 * pair + 2];
    const size_t base = size_t(row) * length;
    double chosen = 0, rejected = 0;
    for (int position = first + threadIdx.x; position < last; position += THREADS) {
        const double value = logprobs[(base + position) * heads];
        if (position < middle) chosen += value;
        else rejected += value;
    }
    chosen = block_sum<WARPS>(chosen);
    rejected = block_sum<WARPS>(rejected);
    const double of_chosen = scales[2 * pair], of_rejected = scales[2 * pair + 1];
    const double z = of_chosen * (chosen - reference[2 * pair]) -
                     of_rejected * (rejected - reference[2 * pair + 1]) - margin;
    const double pull = 1 - smoothing - exp(-softplus(-z));
    for (int position = first + threadIdx.x; position < last; position += THREADS)
        weights[(base + position) * heads] =
            float(position < middle ? share * of_chosen * pull : -share * of_rejected * pull);
    if (threadIdx.x == 0)
        pair_losses[pair] = share * ((1 - smoothing) * softplus(-z) + smoothing * softplus(z));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_pair_losses(const double* pair_losses, int count, double* losses) {
    double total = 0;
    for (int pair = threadIdx.x; pair < count; pair += THREADS) total += pair_losses[pair];
    total = block_sum<WARPS>(total);
    if (threadIdx.x < 2) losses[threadIdx.x] += total;
}
