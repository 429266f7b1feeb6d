"""A training step on one GPU beside PyTorch's: time, ratio, spread, MFU, joules and peak memory.

    python benchmarks/cuda_training_step.py --preset base --rows 64 --length 512 --precision bf16

Both sides run in one process and do the whole step: forward, backward, clipping to norm 1, AdamW;
same weights, same tokens. PyTorch runs compiled (torch.compile), with fused AdamW and, for bf16
and fp8, bf16 autocast. Beside fp8 there is a third side, the peer with its linear layers in fp8
(torch._scaled_mm, scales of the moment, e4m3 forward, e5m2 gradients). The sides take turns of ten
steps; each figure is the median of several turns, in brackets the fastest and the slowest, and the
ratio that of the turns side by side. The energy of a step is the GPU's own count over all turns of
a side. The count lags behind: some hundredths of a side's may be the other's. Takes about two
minutes for two sides, most of them for torch.compile.

The shape of GPT-2 124M, one head, with our architecture:

    python benchmarks/cuda_training_step.py --rows 16 --length 1024 --heads 1 \\
        --model '{"layers": 12, "kv_heads": 12, "vocab_size": 50257, "tied": true}'

GPT-2 124M itself beside nanoGPT's architecture, both with the vocabulary that nanoGPT pads:

    python benchmarks/cuda_training_step.py --preset gpt2 --rows 16 --length 1024 --heads 1 \\
        --model '{"vocab_size": 50304}'

What a smaller card would run: our kernels for compute capability 8.0 in a limited memory, with as
many rows in a step as fit.

    python benchmarks/cuda_training_step.py --alone --portable --memory 11
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from nanoeuler.backend.cuda.device import peak_flops
from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.model.buffers import rows_within
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count, training_flops_per_token
from nanoeuler.system.energy import GPU, Meter
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import state_bytes
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

STEPS, UNTIMED = 10, 3


@dataclass
class Side:
    """What is ready to be timed: its steps have been compiled and recorded."""

    step: Callable[[], object]
    finish: Callable[[], object]
    gigabytes: Callable[[], float]
    """Peak memory so far."""
    first_loss: float
    energy: float = 0
    """Joules of all turns; NaN without a counter."""

    def turn(self) -> float:
        spent = joules()
        duration = milliseconds(self.step, self.finish, STEPS)
        self.energy += joules() - spent
        return duration


@functools.cache
def meter() -> Meter:
    device = cupy.cuda.runtime.getDevice()
    return Meter(cupy.cuda.runtime.deviceGetPCIBusId(device), cpu=False)


def joules() -> float:
    return meter().joules().get(GPU, float("nan"))


def milliseconds(step: Callable[[], object], finish: Callable[[], object], steps: int) -> float:
    """Of one of `steps` steps."""
    finish()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return 1e3 * (time.perf_counter() - began) / steps


def ours(config: ModelConfig, stream: TextStream, options: argparse.Namespace) -> Side:
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    backend = CudaBackend(options.precision, options.residual, portable=options.portable)
    state = TrainingState(
        config,
        backend,
        initial_parameters(config, 1),
        AdamW(0.9, 0.95, 1e-8, 0.1, 1.0),
        recompute=options.recompute,
    )
    rows = stream.rows(0)
    losses = [
        state.train_step(rows, options.micro_batch_rows or options.rows, 1e-4).loss
        for _ in range(UNTIMED)
    ]

    def step() -> None:
        # as the training loop does it: the next rows are handed over while this step runs
        state.start(options.micro_batch_rows or options.rows, 1e-4)
        state.stage(rows)
        state.finish()

    return Side(step, backend.runtime.finish, lambda: (pool.used_bytes() - before) / 1e9, losses[0])


def rows_that_fit(config: ModelConfig, options: argparse.Namespace) -> int:
    """What the trainer would take on a card of so much memory."""
    backend = CudaBackend(options.precision, options.residual)
    backend.device.memory = options.memory * 1e9
    budget = backend.activation_budget(2 * state_bytes(config, AdamW))
    return rows_within(config, backend, options.length, budget, recompute=options.recompute)


def peer_in_fp8(config: ModelConfig, stream: TextStream, options: argparse.Namespace) -> Side:
    """PyTorch's, with linear layers in fp8 as one would first write them."""
    return peer(config, stream, options, fp8=True)


def peer(
    config: ModelConfig, stream: TextStream, options: argparse.Namespace, *, fp8: bool = False
) -> Side:
    """PyTorch's."""
    import torch
    from pytorch_model import make_model, use_fp8

    torch.set_float32_matmul_precision("highest" if options.precision == "fp32" else "high")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = make_model(config, initial_parameters(config, 1), packed=not options.separate).cuda()
    if fp8:
        use_fp8(model)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    rows = stream.rows(0)
    ids, targets = torch.from_numpy(rows.ids).cuda(), torch.from_numpy(rows.targets).cuda().long()
    compiled = torch.compile(model)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=options.precision in ("bf16", "fp8")):
            loss = compiled(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = [step().item() for _ in range(UNTIMED)]
    gigabytes = (torch.cuda.max_memory_allocated() - before) / 1e9
    return Side(step, torch.cuda.synchronize, lambda: gigabytes, losses[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--heads", type=int, default=4, help="prediction heads K")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp8"), default="bf16")
    parser.add_argument("--residual", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--micro-batch-rows", type=int)
    parser.add_argument("--runs", type=int, default=9, help="turns of each side")
    parser.add_argument(
        "--separate",
        action="store_true",
        help="the peer with products of their own for q, k, v, gate, up and each head",
    )
    parser.add_argument("--alone", action="store_true", help="without the peer")
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
    parser.add_argument(
        "--memory", type=float, help="gigabytes that our side may take; sets the rows of a step"
    )
    options = parser.parse_args()
    config = ModelConfig.from_dict(
        {"preset": options.preset, "context": options.length, "mtp_heads": options.heads}
        | options.model
    )
    if options.memory:
        cupy.get_default_memory_pool().set_limit(size=int(options.memory * 1e9))
        options.rows = rows_that_fit(config, options)
    tokens = np.random.default_rng(1).integers(
        1, config.vocab_size, options.rows * options.length, dtype=np.int32
    )
    stream = TextStream(
        tokens, options.length, len(tokens), config.mtp_weights, 0, False, 1, "benchmark"
    )
    flops = training_flops_per_token(config, options.length) * len(tokens)
    makers = {"nanoeuler": ours}
    if not options.alone:
        makers["torch.compile"] = peer
        if options.precision == "fp8":
            makers["torch.compile, fp8"] = peer_in_fp8
    shape = f"{options.rows} × {options.length} tokens, K = {options.heads}"
    print(
        f"{options.preset}, {parameter_count(config):,} parameters, {shape}, {options.precision},"
        f" {options.runs} turns of {STEPS} steps"
    )
    sides = {name: make(config, stream, options) for name, make in makers.items()}
    turns = [{name: side.turn() for name, side in sides.items()} for _ in range(options.runs)]
    for name, side in sides.items():
        middle, spread = summary([turn[name] for turn in turns])
        peak = peak_flops(
            cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), options.precision
        )
        mfu = f"{flops / middle * 1e3 / peak:.1%}" if peak else "n/a"
        speed = f"{middle:8.2f} ms {spread}  {len(tokens) / middle * 1e3:9,.0f} tokens/s"
        energy = side.energy / STEPS / options.runs
        memory = f"{side.gigabytes():.1f} GB  {energy:.1f} J, {energy / middle * 1e3:.0f} W"
        print(
            f"  {name:<19}{speed}  MFU {mfu}  {memory}  first loss {side.first_loss:.4f}",
            flush=True,
        )
    for name, side in list(sides.items())[1:]:
        middle, spread = summary([turn[name] / turn["nanoeuler"] for turn in turns])
        memory = sides["nanoeuler"].gigabytes() / side.gigabytes()
        print(f"  to {name:<16}{middle:8.2f} × the speed {spread}, {memory:.2f} × the memory")


def summary(values: list[float]) -> tuple[float, str]:
    """The median, and the range in brackets."""
    return statistics.median(values), f"({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
