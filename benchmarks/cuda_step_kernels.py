"""Where a training step's time goes on one GPU: every op of a step, timed in its place.

    python benchmarks/cuda_step_kernels.py --rows 64 --length 512

A step runs without a graph, with events around each op. Some large copies run first, so that the
host has queued everything before the first op begins. Medians over nine steps and over the ops of
one name and shape. TFLOP/s are those of products; TB/s, of ops that only move memory, count the
bytes that each file's first comment gives.
"""

import argparse
import collections
import json
import math
import statistics
from typing import Any

import cupy
import numpy as np

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream


def size(array: Any) -> int:
    return math.prod(array.shape) * array.itemsize


def gemm(out: Any, inner: int) -> tuple[float, str]:
    return 2 * math.prod(out.shape) * inner, "TFLOP/s"


PRODUCTS = {  # work of a call from its arguments, and its unit
    "multiply": lambda a, ta, b, tb, out, *rest, **named: gemm(out, a.shape[0 if ta else 1]),
    "multiply_biased": lambda x, w, out, *rest, **named: gemm(out, x.shape[1]),
}
FUSED = {
    "rope": lambda x, w, packed, *rest: gemm(packed, x.shape[1]),
    "swiglu": lambda x, w, packed, *rest: gemm(packed, x.shape[1]),
    "swiglu_backward": lambda dx, w, scale, packed, up, out, *rest: gemm(out, dx.shape[1]),
    "gelu": lambda bias, up, factors, copy: gemm(up, factors[0].values.shape[1]),
    "gelu_backward": lambda scale, up, factors, copies: gemm(up, factors[0].values.shape[1]),
}
OPS = {
    "rope": lambda x, *rest, **named: (2 * size(x), "TB/s"),
    "swiglu": lambda gate, up, out: (3 * size(out), "TB/s"),
    "swiglu_backward": lambda dout, *rest: (6 * size(dout), "TB/s"),
    "rms_norm": lambda norm: (size(norm.x_ND) + size(norm.out_ND), "TB/s"),
    "rms_norm_backward": lambda dout, norm, into: (
        size(dout)
        + size(norm.x_ND)
        + size(into.dx_ND) * (1 + into.add_to_dx)
        + (0 if into.out_ND is None else size(into.out_ND)),
        "TB/s",
    ),
    "add_layer_norm": lambda x, *rest: (4 * size(x), "TB/s"),
    "layer_norm_backward": lambda dout, *rest: (5 * size(dout), "TB/s"),
    "add_bias": lambda out, bias: (2 * size(out), "TB/s"),
    "bias_gelu": lambda x, bias, out: (3 * size(out), "TB/s"),
    "gelu_backward": lambda dout, *rest: (4 * size(dout), "TB/s"),
    "bias_backward": lambda dout, *rest, **named: (size(dout), "TB/s"),
    "layer_norm": lambda norm: (2 * size(norm.x_ND), "TB/s"),
    "cross_entropy_with_gradient": lambda rows: (2 * size(rows.logits_RV), "TB/s"),
    "embedding": lambda ids, table, out: (2 * size(out), "TB/s"),
    "embedding_backward": lambda ids, dout, dtable, **rest: (size(dout) + size(dtable), "TB/s"),
    "squares": lambda gradients: (size(gradients), "TB/s"),
    "move": lambda rule, flat, *rest: (
        28 * flat.parameters.size
        + (0 if flat.working is flat.parameters else 2 * flat.parameters.size),
        "TB/s",
    ),
    "attention": lambda *rest: (0, ""),
    "attention_backward": lambda *rest: (0, ""),
    "add_losses": lambda *rest: (0, ""),
}
RUNTIME = {"training_weights": lambda *rest: (0, "")}


class Timer:
    """Stands between a model and its ops."""

    def __init__(self, backend: CudaBackend):
        self.backend, self.calls = backend, []
        products, runtime = (backend.products, PRODUCTS), (backend.runtime, RUNTIME)
        for owner, ops in (products, (backend.fused, FUSED), (backend, OPS), runtime):
            for name, work in ops.items() if owner else ():
                setattr(owner, name, self.timed(name, getattr(owner, name), work))

    def timed(self, name: str, op: Any, work: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(self.backend.stream)
            result = op(*arguments, **named)
            end.record(self.backend.stream)
            arrays = [
                array
                for given in arguments
                for array in (given if isinstance(given, tuple) else (given,))
                if hasattr(array, "shape")
            ]
            shapes = " ".join("×".join(map(str, array.shape)) for array in arrays[:4])
            kind = " ".join(str(array.dtype) for array in arrays[:1])
            self.calls.append((f"{name} {shapes} {kind}", begin, end, work(*arguments, **named)))
            return result

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp8"), default="bf16")
    parser.add_argument("--heads", type=int, default=4, help="prediction heads K")
    parser.add_argument(
        "--model",
        type=json.loads,
        default={},
        help="fields of the model in JSON, over those of the preset",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="only kernels that run from compute capability 8.0 up",
    )
    options = parser.parse_args()
    config = ModelConfig.from_dict(
        {"preset": options.preset, "context": options.length, "mtp_heads": options.heads}
        | options.model
    )
    tokens = np.random.default_rng(1).integers(
        1, config.vocab_size, options.rows * options.length, dtype=np.int32
    )
    rows = TextStream(
        tokens, options.length, len(tokens), config.mtp_weights, 0, False, 1, "benchmark"
    ).rows(0)
    backend = CudaBackend(options.precision, graphs=False, portable=options.portable)
    state = TrainingState(
        config, backend, initial_parameters(config, 1), AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    )
    for _ in range(2):  # fp8 begins with a step in bf16
        state.train_step(rows, options.rows, 1e-4)
    timer, ballast = Timer(backend), cupy.empty(2 << 30, np.uint8)
    found = collections.defaultdict(list)
    for _ in range(9):
        timer.calls.clear()
        for _ in range(40):  # 40 ms of copies: time for the host to queue the step
            ballast[: 1 << 30].data.copy_from_device_async(
                ballast[1 << 30 :].data, 1 << 30, backend.stream
            )
        state.train_step(rows, options.rows, 1e-4)
        once = collections.defaultdict(list)
        for name, begin, end, work in timer.calls:
            once[name, work].append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
        for key, times in once.items():
            found[key].append((len(times), statistics.median(times)))
    lines = [
        (counts[0][0], statistics.median(time for _, time in counts), name, work)
        for (name, work), counts in found.items()
    ]
    print(
        f"{options.preset}, {options.rows} × {options.length} tokens, {options.precision};"
        f" sum of the ops {sum(n * us for n, us, *_ in lines) / 1e3:.2f} ms"
    )
    for count, us, name, (work, unit) in sorted(lines, key=lambda line: -line[0] * line[1]):
        rate = f"{work / us / (1e6 if unit else 1):7.2f} {unit}" if work else ""
        print(f"  {count:3} × {us:8.1f} us = {count * us / 1e3:6.2f} ms  {rate:16} {name}")


if __name__ == "__main__":
    main()
