"""A training step shared by the GPUs of a host, beside one GPU and beside PyTorch's DDP.

    python benchmarks/cuda_scaling.py --gpus 2 --preset base --rows 64 --length 512

The sides take turns of ten steps in the same processes, one for each GPU: every GPU by itself with
`--rows` rows; together with as many rows each; together with `--rows` in all; and PyTorch's
compiled model under DDP with `--rows` rows each. Each figure is the median of the turns on rank 0,
in brackets the fastest and the slowest. Efficiency is tokens per second and GPU, by those of one
GPU alone: of rank 0, and of the slowest, for which all others wait. `--no-peer` leaves PyTorch out.

`--dissect` shows what the step with `--rows` rows each waits for instead, by steps that leave out
some of what the GPUs send each other. Their results mean nothing.
"""

import argparse
import operator
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from peers import spread

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.backend.records import Array
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.distributed.group import ALONE, Group, nothing_to_wait_for
from nanoeuler.training.distributed.ranks import connected, ranks
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

Step = Callable[[], None]
STEPS, UNTIMED = 10, 4
PORT = 29511


class Part(Group):
    """Some of what a group does."""

    def __init__(
        self, group: Group, *, weights: str = "hidden", gradients: bool = True, small: bool = True
    ):
        """`weights`: "hidden" behind the forward pass, "waited" for at once, or "none"."""
        self.rank, self.size, self.group = group.rank, group.size, group
        self.weights, self.gradients, self.small = weights, gradients, small

    def sum(self, *arrays: Array) -> None:
        if self.small:
            self.group.sum(*arrays)

    def largest(self, array: Array) -> None:
        if self.small:
            self.group.largest(array)

    def begin_reduce(self, *what: Any, **how: Any) -> None:
        if self.gradients:
            self.group.begin_reduce(*what, **how)

    def finish_reduce(self) -> None:
        if self.gradients:
            self.group.finish_reduce()

    def begin_gather(self, *what: Any) -> Step:
        if self.weights == "none":
            return nothing_to_wait_for
        wait = self.group.begin_gather(*what)
        if self.weights == "waited":
            wait()
        return wait


def parts(group: Group) -> dict[str, Group]:
    """What a step can leave out, by what is left."""
    return {
        "all that is sent": group,
        "weights waited for at once": Part(group, weights="waited"),
        "no weights": Part(group, weights="none"),
        "no gradients": Part(group, gradients=False),
        "losses and norms alone": Part(group, weights="none", gradients=False),
        "nothing": Part(group, weights="none", gradients=False, small=False),
    }


def stream(config: ModelConfig, rows: int, length: int) -> TextStream:
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, rows * length, dtype=np.int32)
    return TextStream(
        tokens, length, len(tokens), config.mtp_weights, 0, False, 1, name="benchmark"
    )


def side(
    config: ModelConfig, engine: CudaBackend, group: Group, rows: int, options: argparse.Namespace
) -> tuple[Step, TrainingState]:
    """A step of `rows` rows by all ranks of `group` together."""
    adamw = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    optimizer = Muon(0.9, adamw) if options.optimizer == "muon" else adamw
    state = TrainingState(
        config,
        engine,
        initial_parameters(config, 1),
        optimizer,
        group=group,
        rounded_sums=options.rounded_sums,
    )
    given, each = stream(config, rows, options.length).rows(0), rows // group.size
    state.stage(given)

    def step() -> None:
        # as the training loop does it: the next rows are handed over while this step runs
        state.start(each, 1e-4)
        state.stage(given)
        state.finish()

    for _ in range(UNTIMED):
        step()
    return step, state


def ddp(
    config: ModelConfig, engine: CudaBackend, group: Group, options: argparse.Namespace
) -> Step:
    """PyTorch's step, with `--rows` rows on each GPU."""
    import torch
    from pytorch_model import PyTorchModel

    torch.set_float32_matmul_precision("high")
    torch.cuda.set_device(engine.device.index)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    torch.distributed.init_process_group("nccl", rank=group.rank, world_size=group.size)
    model = PyTorchModel(config, initial_parameters(config, 1), packed=True).cuda()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    shared = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[engine.device.index], gradient_as_bucket_view=True
    )
    compiled = torch.compile(shared)
    rows = stream(config, options.rows, options.length).rows(0)
    ids, targets = torch.from_numpy(rows.ids).cuda(), torch.from_numpy(rows.targets).cuda().long()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    for _ in range(UNTIMED):
        step()
    return step


def turn(step: Step, group: Group) -> float:
    """Milliseconds of a step; all ranks begin together."""
    wait_for_all(group)
    cupy.cuda.runtime.deviceSynchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    cupy.cuda.runtime.deviceSynchronize()
    return 1e3 * (time.perf_counter() - began) / STEPS


def wait_for_all(group: Group) -> None:
    one = cupy.ones(1, np.float32)
    group.sum(one)
    one.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--precision", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rounded-sums", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--dissect", action="store_true")
    options = parser.parse_args()
    config = ModelConfig.from_dict(
        {"preset": options.preset, "context": options.length, "mtp_heads": options.heads}
    )
    with ranks(options.gpus, Path()) as hosts:
        engine = CudaBackend(options.precision)
        group = connected(hosts, engine)
        if not group.rank:
            group.admit()
        (dissect if options.dissect else measure)(config, engine, group, options)


def take_turns(steps: dict[str, Step], group: Group, turns: int) -> list[dict[str, list[float]]]:
    """Of each turn, each side's milliseconds on every rank."""
    found = []
    for _ in range(turns):
        own = {name: turn(step, group) for name, step in steps.items()}
        found.append(group.exchange(own))
    return [{name: [rank[name] for rank in ranks] for name in steps} for ranks in found]


def dissect(
    config: ModelConfig, engine: CudaBackend, group: Group, options: argparse.Namespace
) -> None:
    rows, steps, states = group.size * options.rows, {}, []
    steps["one GPU"], state = side(config, engine, ALONE, options.rows, options)
    states.append(state)
    for name, part in parts(group).items():
        steps[name], state = side(config, engine, part, rows, options)
        states.append(state)
    turns = take_turns(steps, group, options.turns)
    if group.rank:
        group.heed()
        return
    print(f"{options.preset}, {options.precision}: ms a step of {options.rows} rows a GPU")
    for name in steps:
        times = [each[name][0] for each in turns]
        saved = [each["all that is sent"][0] - each[name][0] for each in turns]
        print(f"  {name:<28}{spread(times, '.2f'):<26}{spread(saved, '+.2f')}", flush=True)
    for rank in range(group.size):
        print(f"  one GPU, rank {rank}: {spread([each['one GPU'][rank] for each in turns], '.2f')}")


def measure(
    config: ModelConfig, engine: CudaBackend, group: Group, options: argparse.Namespace
) -> None:
    N, rows = group.size, options.rows
    steps, memory, tokens = {}, {}, {}
    for name, of, count in (
        ("one GPU", ALONE, rows),
        (f"{N} GPUs, {rows} rows each", group, N * rows),
        (f"{N} GPUs, {rows} rows in all", group, rows),
    ):
        before = cupy.get_default_memory_pool().used_bytes()
        steps[name], _state = side(config, engine, of, count, options)
        memory[name] = cupy.get_default_memory_pool().used_bytes() - before
        tokens[name] = count * options.length / of.size
    if not options.no_peer:
        name = f"PyTorch DDP, {rows} rows each"
        steps[name], tokens[name] = ddp(config, engine, group, options), rows * options.length
    turns = take_turns(steps, group, options.turns)
    if group.rank:
        group.heed()  # until rank 0 is done, which takes an earlier end for a failure
        return
    print(f"{options.preset}, {options.precision}, {options.optimizer}: tokens/s of each GPU")
    for name in steps:
        times = [each[name][0] for each in turns]
        work = tokens[name] / tokens["one GPU"]
        shares, of_slowest = (
            [work * alone(each["one GPU"]) / each[name][0] for each in turns]
            for alone in (operator.itemgetter(0), max)
        )
        print(
            f"  {name:<28}{spread(times, '.2f')} ms"
            f"{1e3 * tokens[name] / statistics.median(times):10,.0f}  {spread(shares, '.1%')}"
            f"; of the slowest GPU {spread(of_slowest, '.1%')}"
            + (f"  {memory[name] / 1e9:.2f} GB" if name in memory else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
