// Copies from global to shared memory that run while the threads compute, and matrices of 8 × 8
// numbers of 16 bits from there to registers. `address_of` of an offset is the including file's.

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
