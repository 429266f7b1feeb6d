"""Attention beside PyTorch's FlashAttention-2 and cuDNN: forward and backward, bf16, causal.

    python benchmarks/cuda_attention.py

All run in one process. Each line is one shape; 32,768 tokens a call. TFLOP/s count the products of
a causal pass as it is usually done: 2 B H T² E forward, 2.5 times that backward (whatever else a
kernel recomputes). Times are medians over rounds in which all three take turns, [least, most]; a
round is the mean of some calls. Both sides read the same packed q, k, v. Takes about half a minute.
"""

import argparse
import statistics
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanoeuler.backend.cuda.attention import Attention
from nanoeuler.backend.cuda.device import capability
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.records import AttentionArrays

TOKENS = 32768
PEERS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def microseconds(work: Any, calls: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / calls


def graph_of(work: Any) -> Any:
    """The work as a CUDA graph, as a training step runs it: without Python between the kernels."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    work()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def as_cupy(tensor: torch.Tensor) -> Any:
    return cupy.from_dlpack(tensor.detach().view(torch.int16)).view(ml_dtypes.bfloat16)


def split(packed: Any, heads: int, kv_heads: int) -> tuple[Any, Any, Any]:
    return (
        packed[:, :, :heads],
        packed[:, :, heads : heads + kv_heads],
        packed[:, :, heads + kv_heads :],
    )


def works(
    T: int, heads: int, kv_heads: int, head_size: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Forward and backward passes by name, ready to be timed."""
    B = TOKENS // T
    torch.manual_seed(1)
    packed = torch.randn(B, T, heads + 2 * kv_heads, head_size, device="cuda", dtype=torch.bfloat16)
    dout = torch.randn(B, T, heads, head_size, device="cuda", dtype=torch.bfloat16)
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
    attention = Attention(Kernels(stream, capability(0)), heads, kv_heads, head_size, "bf16")
    out = cupy.empty((B, T, heads, head_size), ml_dtypes.bfloat16)
    gradient = cupy.empty(packed.shape, ml_dtypes.bfloat16)
    lse = cupy.empty((B, heads, T), np.float32)
    inputs = split(as_cupy(packed), heads, kv_heads)
    saved = AttentionArrays(*inputs, out)
    gradients = AttentionArrays(*split(gradient, heads, kv_heads), as_cupy(dout))
    starts = cupy.zeros((B, T), np.int32)
    offset = cupy.zeros(B, np.int32)
    workspace = cupy.empty(attention.workspace_bytes(B, T), np.uint8)

    def ours_forward() -> None:
        attention.forward(saved, starts, offset, lse)

    def ours_backward() -> None:
        attention.backward(saved, gradients, starts, lse, workspace)

    forward, backward = {"ours": graph_of(ours_forward)}, {"ours": graph_of(ours_backward)}
    for name, backend in PEERS.items():
        query, key, value = (
            x.transpose(1, 2).detach().requires_grad_() for x in split(packed, heads, kv_heads)
        )

        def attend(backend: Any = backend, inputs: Any = (query, key, value)) -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    *inputs, is_causal=True, enable_gqa=heads != kv_heads
                )

        def attend_only(attend: Any = attend) -> None:
            with torch.no_grad():
                attend()

        result = attend()  # on the stream that the backward pass is captured on

        def differentiate(result: torch.Tensor = result, inputs: Any = (query, key, value)) -> Any:
            return torch.autograd.grad(result, inputs, dout.transpose(1, 2), retain_graph=True)

        forward[name], backward[name] = graph_of(attend_only), graph_of(differentiate)
    return forward, backward


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[12, 4])
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__},"
        f" heads of {options.head_size}; us, TFLOP/s, and our speed over the peer's"
    )
    for kv_heads in options.kv_heads:
        for T in options.lengths:
            operations = 2 * TOKENS * options.heads * T * options.head_size
            with torch.cuda.stream(torch.cuda.Stream()):
                both = works(T, options.heads, kv_heads, options.head_size)
            passes = zip(("forward", "backward"), both, (1, 2.5), strict=True)
            for direction, work, share in passes:
                times: dict[str, list[float]] = {name: [] for name in work}
                for name in work:
                    microseconds(work[name], 3)
                for _ in range(options.rounds):
                    for name in work:
                        times[name].append(microseconds(work[name], 10))
                middle = {name: statistics.median(of) for name, of in times.items()}
                cells = [
                    f"{name} {middle[name]:.0f} [{min(of):.0f}, {max(of):.0f}]"
                    f" {share * operations / middle[name] / 1e6:.0f}"
                    + ("" if name == "ours" else f" ({middle[name] / middle['ours']:.2f}x)")
                    for name, of in times.items()
                ]
                print(
                    f"T {T:5} heads {options.heads}/{kv_heads} {direction:9}" + " | ".join(cells),
                    flush=True,
                )


if __name__ == "__main__":
    main()
