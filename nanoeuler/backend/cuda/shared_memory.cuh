// Where a chunk of 16 bytes lies in a tile, copies from global to shared memory that run while the
// threads compute, and matrices of 8 × 8 numbers of 16 bits from there to registers. `address_of`
// of an offset is the including file's, as is PANEL_BYTES, of a row of a panel: 64 or 128.

// In a tile of N rows, whose chunks are permuted by an exclusive or with the row: matrix_units.cuh
// says why.
template <int N>
__device__ __forceinline__ int chunk_offset(int row, int chunk) {
    if constexpr (PANEL_BYTES == 128)
        return chunk / 8 * (N * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
    else return row * 64 + (chunk ^ (row / 2 & 3)) * 16;
}

// 16 bytes, or zeros where `present` is false
__device__ __forceinline__ void copy_16(int target, const void* source, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(target)),
        "l"(source), "r"(present ? 16 : 0)
        : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&words)[4], int offset) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(address_of(offset)));
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&words)[4], int offset) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(address_of(offset)));
}
