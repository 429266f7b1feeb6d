// The tensor copy engine (Hopper), which copies boxes of 64 columns between an array that a map
// describes and a tile as matrix_units.cuh has it, and the barriers in shared memory that count the
// bytes. `address_of` of an offset is that file's.

struct alignas(64) Map {
    unsigned long long words[16];
};

// ---- barriers

// `count`: arrivals that complete a phase
__device__ __forceinline__ void init_barrier(unsigned address, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(count));
}

// Behind it the copy engine and the other blocks of a cluster know the barriers.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void expect_barrier(unsigned address, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void arrive(unsigned address) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}

__device__ __forceinline__ void arrive_in(int block, unsigned address, int count) {
    asm volatile(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there], %2;}" ::"r"(address),
        "r"(block), "r"(count)
        : "memory");
}

// Barriers keep to .cta, their default: a .cluster release or acquire would flush all of a thread's
// memory, at every stage.
__device__ __forceinline__ void await(unsigned address, int phase) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done "
        "bra again;}" ::"r"(address),
        "r"(phase)
        : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// ---- the copy engine

__device__ __forceinline__ void
load_box(const Map& map, int target, int column, int row, unsigned full) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(address_of(target)),
        "l"(&map), "r"(column), "r"(row), "r"(full)
        : "memory");
}

// To the same address in both blocks, whose barriers count the bytes.
__device__ __forceinline__ void
load_box_for_both(const Map& map, int target, int column, int row, unsigned full) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address_of(target)),
        "l"(&map), "r"(column), "r"(row), "r"(full), "h"((unsigned short)3)
        : "memory");
}

__device__ __forceinline__ void store_box(const Map& map, int source, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(column), "r"(row), "r"(address_of(source))
        : "memory");
}
