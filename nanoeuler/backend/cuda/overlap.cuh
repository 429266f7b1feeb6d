// Starting a kernel before the one that it waits for has ended (programmatic dependent launch,
// compute capability 9.0 up).
//
// A kernel that is launched with `early` may start as soon as every block of the kernel before it
// has called `let_next_start`. What it then does (loading weights, which nobody changes) overlaps
// with that kernel's end; behind `wait_for_previous` it sees all that earlier kernels wrote. Every
// block has to call it, as the end of this kernel tells the next one that all before it have ended,
// too. Older cards ignore both.

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
