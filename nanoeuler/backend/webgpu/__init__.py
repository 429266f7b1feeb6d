"""The engine for GPUs of all makers, through WebGPU: wgpu's arrays, and a kernel in WGSL for each
op."""
