"""A training step of `small` on the CPU, beside PyTorch eager and torch.compile on the same cores in the same run.

    python benchmarks/cpu_step.py                      batches of 16 and 64 rows, about three minutes; wants the extra `torch` and gcc
    python benchmarks/cpu_step.py --batches 16 --threads 1

Each side does the same work (forward, backward, clipping, AdamW, K = 4 heads) on the same tokens from the same weights; their
losses are compared first. A round times some steps of each side, in turn. Printed are medians over the rounds with their range.
Memory is each side's peak above what its imports take, each in a process of its own; what Numba and torch.compile import only when
they are first used counts as imports, and both have used themselves on one number by then. Last come the matrix products alone.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.transformer import initial_parameters
from nanoeuler.training.streams import StepRows, TextStream

SIDES = ("nanoeuler", "eager", "compile")
LEARNING_RATE = 1e-3


def step_rows(config: ModelConfig, batch: int) -> StepRows:
    tokens = (
        np.random.default_rng(1)
        .integers(1, config.vocab_size, batch * config.context + 1000)
        .astype(np.int32)
    )
    return TextStream(
        tokens, config.context, batch * config.context, config.mtp_weights, 0, False, 1, "benchmark"
    ).step(0)


def prepare(
    side: str, config: ModelConfig, batch: int, threads: int
) -> tuple[Callable[[], float], float]:
    """One step as a function that returns its loss, and the megabytes that the process took at most before this."""
    rows, parameters = step_rows(config, batch), initial_parameters(config, 1)
    if side == "nanoeuler":
        from nanoeuler.backend.cpu.engine import CpuBackend
        from nanoeuler.backend.cpu.optimizer import squares
        from nanoeuler.training.micro_batches import largest_divisor
        from nanoeuler.training.state import AdamW, TrainingState

        squares(np.ones(1, np.float32))
        before = peak_megabytes()
        backend = CpuBackend(threads)
        state = TrainingState(config, backend, parameters, AdamW(0.9, 0.95, 1e-8, 0.1, 1.0))
        tokens, shares = backend.slices(len(parameters))
        micro_batch_rows = largest_divisor(
            batch, min(tokens // config.context, -(-batch // shares))
        )
        return lambda: state.train_step(rows, micro_batch_rows, LEARNING_RATE).loss, before
    import torch
    from pytorch_model import PyTorchModel, make_step

    if side == "compile":
        torch.compile(lambda x: x * x)(torch.ones(1))
    torch.set_num_threads(threads)
    before = peak_megabytes()
    model = PyTorchModel(config, parameters)
    step = make_step(model, model if side == "eager" else torch.compile(model), LEARNING_RATE)
    ids, targets = (
        torch.from_numpy(rows.ids.astype(np.int64)),
        torch.from_numpy(rows.targets.astype(np.int64)),
    )
    return lambda: step(ids, targets), before


def peak_megabytes() -> float:
    """Linux's high-water mark of this program; `getrusage` would start from the parent's."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def memory(side: str, batch: int, threads: int) -> float:
    """Megabytes that three steps take at most above the imports, in a process of its own.

    The compiled step is measured in a second process, which finds the machine code on disk.
    """
    command = [
        sys.executable,
        __file__,
        "--memory",
        side,
        "--batches",
        str(batch),
        "--threads",
        str(threads),
    ]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


def products_only(config: ModelConfig, threads: int) -> float:
    """Tokens per second if a step were nothing but its matrix products, of 256 tokens as in a step: one BLAS thread each."""
    from nanoeuler.backend.cpu.team import Team

    from nanoeuler.backend.cpu import fused
    from nanoeuler.backend.cpu.blas import Blas
    from nanoeuler.model.flat import PackedColumns

    columns, blas, tokens = PackedColumns(config), Blas(), 256
    c, sgemm, one, zero = (
        config,
        (blas.address, blas.wide, blas.unpacked),
        np.float32(1),
        np.float32(0),
    )
    layer = [
        (columns.query_key_value, c.dim),
        (c.dim, c.heads * c.head_size),
        (columns.gate_up, c.dim),
        (c.dim, c.ffn_storage),
    ]
    shapes = [*layer * c.layers, (columns.heads, c.dim)]

    def arrays() -> list[tuple[np.ndarray, ...]]:
        return [
            tuple(
                np.ones(shape, np.float32)
                for shape in ((tokens, i), (o, i), (i, o), (tokens, o), (tokens, i), (o, i))
            )
            for o, i in shapes
        ]

    sets = [arrays() for _ in range(threads)]

    def work(index: int) -> None:
        for x, weight, transpose, out, dx, dweight in sets[index]:
            fused.linear(*sgemm, x, transpose.T, out, 0, tokens)
            fused.linear_backward_input(*sgemm, out, weight, dx, one, zero, 0, tokens)
            fused.linear_backward_weight(*sgemm, out, x, dweight, one, zero, 0, len(dweight))

    team = Team(threads)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        team.each(threads, work)
        times.append(time.perf_counter() - began)
    return threads * tokens / float(np.median(times[3:]))


def compare(batch: int, threads: int, rounds: int, with_memory: bool) -> None:
    from peers import spread

    config = ModelConfig.from_dict({"preset": "small"})
    steps = {side: prepare(side, config, batch, threads)[0] for side in SIDES}
    losses = {side: [step() for _ in range(3)] for side, step in steps.items()}
    worst = max(
        abs(loss / ours - 1)
        for side in SIDES
        for loss, ours in zip(losses[side], losses["nanoeuler"], strict=True)
    )
    if worst > 1e-4:
        sys.exit(f"the losses differ by {worst:.1e}: {losses}; nothing to compare")
    repeats, seconds = max(1, 64 // batch), {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, step in steps.items():
            began = time.perf_counter()
            for _ in range(repeats):
                step()
            seconds[side].append((time.perf_counter() - began) / repeats)
    times = {side: np.array(values) for side, values in seconds.items()}
    print(
        f"B = {batch}, T = {config.context}, {rounds} rounds of {repeats} steps; losses agree to {worst:.0e}"
    )
    for side in SIDES:
        ratio = (
            ""
            if side == "nanoeuler"
            else f"; nanoeuler is {spread(times[side] / times['nanoeuler'], '.2f')} times as fast"
        )
        print(
            f"  {side:<10} {spread(batch * config.context / times[side], ',.0f')} tokens/s{ratio}"
        )
    if with_memory:
        print(
            "  memory     "
            + ", ".join(f"{side} {memory(side, batch, threads):,.0f} MB" for side in SIDES)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--speed-only",
        action="store_true",
        help="leave out memory, which takes three processes more",
    )
    parser.add_argument("--memory", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    config = ModelConfig.from_dict({"preset": "small"})
    if options.memory:
        step, before = prepare(options.memory, config, options.batches[0], options.threads)
        for _ in range(3):
            step()
        print(peak_megabytes() - before)
        return
    from peers import about

    print(about(options.threads))
    for batch in options.batches:
        compare(batch, options.threads, options.rounds, not options.speed_only)
    print(f"matrix products alone: {products_only(config, options.threads):,.0f} tokens/s")


if __name__ == "__main__":
    main()
