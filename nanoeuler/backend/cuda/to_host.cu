// Writes a small array to the next slot of pinned memory of the host. Behind a kernel that takes
// less time than the copy engine, whose work begins and ends with a wait.
//
// in:  array, `count` words of 4 bytes
// out: pinned (slots, count), the same in one slot; slot, the one that is written next time
//
// One block; compiled in: its THREADS.
#include "overlap.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    to_host(const int* array, int* pinned, int count, int* slot, int slots) {
    const int at = *slot;  // whoever wrote it ended long ago
    wait_for_previous();
    for (int i = threadIdx.x; i < count; i += THREADS) pinned[at * count + i] = array[i];
    __syncthreads();
    if (threadIdx.x == 0) *slot = at + 1 < slots ? at + 1 : 0;
}
