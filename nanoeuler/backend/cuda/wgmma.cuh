// wgmma (sm_90a): four warps give 64 rows to one instruction, which reads the right factor from
// shared memory and runs asynchronously. Tiles lie as shared_memory.cuh says; include it first.

// How a tile lies in shared memory. `panel_stride` matters only where the product runs along the
// rows and a row has several panels.
__device__ __forceinline__ unsigned long long
descriptor(unsigned tile, unsigned offset, int panel_stride) {
    constexpr unsigned long long EIGHT_ROWS = 8 * PANEL_BYTES / 16,
                                 SWIZZLE = PANEL_BYTES == 128 ? 1 : 2;
    // tiles lie in the first 256 KB, so that the parts of an address add up without a carry into
    // the next field, most of them when compiling; above that an address holds the block's number
    // in its cluster
    unsigned low =
        (address_of(0) & 0x3ffff) / 16 + tile / 16 + offset / 16 + (panel_stride / 16 << 16);
    return low | EIGHT_ROWS << 32 | SWIZZLE << 62;
}

#define FOUR(x, j) "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])
#define FOUR_4(x, j) FOUR(x, j), FOUR(x, j + 1), FOUR(x, j + 2), FOUR(x, j + 3)
#define FOUR_8(x, j) FOUR_4(x, j), FOUR_4(x, j + 4)
// The operands %0, %1, … of a result of so many columns, ten at a time.
#define TEN(i) \
    "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9,"
#define D_8 "{%0,%1,%2,%3}"
#define D_16 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define D_32 "{" TEN() "%10,%11,%12,%13,%14,%15}"
#define D_64 "{" TEN() TEN(1) TEN(2) "%30,%31}"
#define D_128 "{" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63}"
#define D_256                                                                          \
    "{" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
    "%120,%121,%122,%123,%124,%125,%126,%127}"

// x (64 × N, 16 rows of it in this warp) = (add ? x : 0) + left · right
// left: registers, or a descriptor; TRANSPOSE: `right` is (16, N), not (N, 16)
#define WGMMA_PRODUCT(N, D, ALL, A, B, ADD, T)                                                 \
    template <int TRANSPOSE>                                                                   \
    __device__ __forceinline__ void wgmma(                                                     \
        float (&x)[N / 8][4], const unsigned (&left)[4], unsigned long long right, int add) {  \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " ADD                                      \
                     ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 " D ", " A \
                     ", " B ", p, 1, 1, " T ";}"                                               \
            : ALL                                                                              \
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add),    \
            "n"(TRANSPOSE));                                                                   \
    }
#define WGMMA_FROM_SHARED(N, D, ALL, A, B, ADD)                                                \
    __device__ __forceinline__ void wgmma(                                                     \
        float (&x)[N / 8][4], unsigned long long left, unsigned long long right, int add) {    \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " ADD                                      \
                     ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 " D ", " A \
                     ", " B ", p, 1, 1, 0, 0;}"                                                \
            : ALL                                                                              \
            : "l"(left), "l"(right), "r"(add));                                                \
    }
#define ALL_8 FOUR(x, 0)
#define ALL_16 FOUR(x, 0), FOUR(x, 1)
#define ALL_32 FOUR_4(x, 0)
#define ALL_64 FOUR_8(x, 0)
#define ALL_128 FOUR_8(x, 0), FOUR_8(x, 8)
WGMMA_PRODUCT(32, D_32, ALL_32, "{%16,%17,%18,%19}", "%20", "%21", "%22")
WGMMA_PRODUCT(64, D_64, ALL_64, "{%32,%33,%34,%35}", "%36", "%37", "%38")
WGMMA_PRODUCT(128, D_128, ALL_128, "{%64,%65,%66,%67}", "%68", "%69", "%70")
WGMMA_FROM_SHARED(8, D_8, ALL_8, "%4", "%5", "%6")
WGMMA_FROM_SHARED(16, D_16, ALL_16, "%8", "%9", "%10")
WGMMA_FROM_SHARED(32, D_32, ALL_32, "%16", "%17", "%18")
WGMMA_FROM_SHARED(64, D_64, ALL_64, "%32", "%33", "%34")
WGMMA_FROM_SHARED(128, D_128, ALL_128, "%64", "%65", "%66")

// The compiler does not know that wgmma writes its result later: this keeps other uses of `x` on
// their side of the wait.
template <int BLOCKS>
__device__ __forceinline__ void pin(float (&x)[BLOCKS][4]) {
#pragma unroll
    for (int j = 0; j < BLOCKS; j++)
        asm volatile("" : "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])::"memory");
}

// Call before products, once the registers that they use are written.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the newest PENDING committed products are done.
template <int PENDING>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
