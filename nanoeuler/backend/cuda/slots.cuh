// Where the new tokens of a sequence go: TOKENS of them, one behind the other.
//
// Compiled in: TOKENS.

// The slot of row `row` in the cache of its sequence; `lengths` are those of the sequences.
__device__ __forceinline__ int slot_of(const int* lengths, int row) {
    return TOKENS == 1 ? lengths[row] : lengths[row / TOKENS] + row % TOKENS;
}
