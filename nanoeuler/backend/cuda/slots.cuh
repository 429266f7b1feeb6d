// Where the new tokens of a sequence go: TOKENS of them, one behind the other.
//
// Compiled in: TOKENS, HEADS, KV_HEADS, QK_NORM.

// Heads of a token in `query`. Where heads have norms (QK_NORM), those of its keys follow those of
// its queries, all as the product left them: no block of a product has a whole head.
// `attend` norms and rotates them and moves the keys to the cache.
constexpr int QUERY_HEADS = HEADS + (QK_NORM ? KV_HEADS : 0);

// The slot of row `row` in the cache of its sequence; `lengths` are those of the sequences.
__device__ __forceinline__ int slot_of(const int* lengths, int row) {
    return TOKENS == 1 ? lengths[row] : lengths[row / TOKENS] + row % TOKENS;
}
