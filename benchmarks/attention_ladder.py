"""Attention's ladder: the same passes by ever better use of the chip, with the time of each rung.

    python benchmarks/attention_ladder.py --rows 16 --length 1024

Rungs: one thread per query (benchmarks/attention_ladder.cu, forward only); tiles in shared memory,
multiplied by plain FFMA; the same tiles on tensor cores in TF32 and in bf16 (mma.sync); the same by
wgmma (compute capability 9.0). The error is that of `out` against the float64 reference. Takes a
few seconds.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from nanoeuler.backend.cuda.attention import Attention
from nanoeuler.backend.cuda.device import capability
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.records import AttentionArrays
from nanoeuler.backend.reference import ReferenceBackend

RUNGS = [
    ("tiles, FFMA", "ffma", "fp32"),
    ("tensor cores, TF32", "tf32", "tf32"),
    ("tensor cores, bf16", "bf16", "bf16"),
    ("wgmma, bf16", "wgmma", "bf16"),
]
RUNS = 20


def timed(work: Any) -> tuple[float, float, float]:
    """Milliseconds: median, least and most of the runs."""
    work()
    events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(RUNS)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    cupy.cuda.Device().synchronize()
    times = [cupy.cuda.get_elapsed_time(*pair) for pair in events]
    return statistics.median(times), min(times), max(times)


def naive(head_size: int) -> Any:
    code = Path(__file__).with_name("attention_ladder.cu").read_text(encoding="utf-8")
    return cupy.RawKernel(
        code, "attention_one_thread_per_query", options=(f"-DHEAD_SIZE={head_size}",)
    )


class Inputs:
    """Random inputs of one precision, and room for the results."""

    def __init__(self, B: int, T: int, heads: int, kv_heads: int, head_size: int, precision: str):
        import ml_dtypes

        dtype = ml_dtypes.bfloat16 if precision == "bf16" else np.float32
        random = cupy.random.RandomState(1)
        self.query, self.dout = (
            random.standard_normal((B, T, heads, head_size), np.float32).astype(dtype)
            for _ in range(2)
        )
        self.key, self.value = (
            random.standard_normal((B, T, kv_heads, head_size), np.float32).astype(dtype)
            for _ in range(2)
        )
        self.starts, self.offset = cupy.zeros((B, T), np.int32), cupy.zeros(B, np.int32)
        self.out, self.lse = cupy.empty_like(self.query), cupy.empty((B, heads, T), np.float32)
        self.inputs = self.query, self.key, self.value
        self.saved = AttentionArrays(*self.inputs, self.out)
        self.gradients = AttentionArrays(*(cupy.empty_like(x) for x in self.inputs), self.dout)

    def error(self) -> float:
        """‖out − reference‖ / ‖reference‖ over the first row."""
        inputs = [x[:1].astype(np.float32).get().astype(np.float64) for x in self.inputs]
        expected = np.empty(inputs[0].shape)
        lse = np.empty((1, expected.shape[2], expected.shape[1]))
        ReferenceBackend(np.float64).attention(
            AttentionArrays(*inputs, expected), self.starts[:1].get(), self.offset[:1].get(), lse
        )
        return float(
            np.linalg.norm(self.out[:1].astype(np.float32).get() - expected)
            / np.linalg.norm(expected)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("rows", 16),
        ("length", 1024),
        ("heads", 12),
        ("kv-heads", 4),
        ("head-size", 64),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    B = options.rows
    T = options.length
    heads = options.heads
    kv_heads = options.kv_heads
    head_size = options.head_size
    # a multiply and an add for each pair and number, in two products, half of the pairs
    operations = 4 * B * heads * T * T / 2 * head_size
    print(
        f"{B} rows of {T} tokens, {heads}/{kv_heads} heads of {head_size};"
        f" median of {RUNS} runs in ms [least, most]"
    )
    print(f"{'rung':24}{'forward':>26}{'TFLOP/s':>9}{'backward':>26}{'TFLOP/s':>9}{'error':>10}")

    def show(
        name: str, forward: tuple[float, ...], backward: tuple[float, ...] | None, error: float
    ) -> None:
        cells = []
        for times, work in ((forward, operations), (backward, 2.5 * operations)):
            cells.append(
                f"{times[0]:10.3f} [{times[1]:.3f}, {times[2]:.3f}]".rjust(26)
                + f"{work / times[0] / 1e9:9.1f}"
                if times
                else " " * 35
            )
        print(f"{name:24}{''.join(cells)}{error:10.1e}", flush=True)

    inputs, kernel = Inputs(B, T, heads, kv_heads, head_size, "fp32"), naive(head_size)
    grid, sizes = (-(-T // 128), heads, B), (np.int32(T), np.int32(heads), np.int32(kv_heads))
    show(
        "one thread per query",
        timed(lambda: kernel(grid, (128,), (*inputs.inputs, inputs.out, *sizes))),
        None,
        inputs.error(),
    )
    kernels = Kernels(cupy.cuda.get_current_stream(), capability(0))
    for name, unit, precision in RUNGS:
        if unit == "wgmma" and not kernels.hopper:
            continue
        x = Inputs(B, T, heads, kv_heads, head_size, precision)
        attention = Attention(kernels, heads, kv_heads, head_size, precision, unit)
        workspace = cupy.empty(attention.workspace_bytes(B, T), np.uint8)

        def forward(x: Inputs = x, attention: Attention = attention) -> None:
            attention.forward(x.saved, x.starts, x.offset, x.lse)

        def backward(
            x: Inputs = x, attention: Attention = attention, workspace: Any = workspace
        ) -> None:
            attention.backward(x.saved, x.gradients, x.starts, x.lse, workspace)

        show(name, timed(forward), timed(backward), x.error())


if __name__ == "__main__":
    main()
