"""A training step of a preset on the CPU, beside PyTorch eager and torch.compile in the same run.

    python benchmarks/cpu_step.py                      16 and 64 rows, about three minutes
    python benchmarks/cpu_step.py --batches 16 --threads 1
    python benchmarks/cpu_step.py --preset gpt2-tiny
    python benchmarks/cpu_step.py --preset gpt2 --batches 1 --speed-only --rounds 5

Needs the extra `torch` and gcc. Where MKL runs, the engine with NumPy's own BLAS is a side too.

Each side does the same work (forward, backward, clipping, AdamW, K = 4 heads) on the same cores and
the same tokens, from the same weights; their losses are compared first. A round times some steps of
each side, one side after the other. Printed are medians over the rounds with their range. On a busy
machine, compare processor times with `--threads 1`: threads that wait by spinning use theirs up.
Memory is the peak of each side, in a process of its own, above what its imports take. Modules that
Numba and torch.compile import at their first use count as imports: each first compiles one trivial
function. Last come the matrix products alone.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from nanoeuler.backend.cpu import blas
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.streams import StepRows, TextStream

SIDES = ("nanoeuler", "eager", "compile")
NUMPY = "numpy"
"""The engine without MKL."""
LEARNING_RATE = 1e-3
PRODUCT_TOKENS = 256  # as in a step of `small`


def step_rows(config: ModelConfig, batch: int) -> StepRows:
    length, size = config.context, batch * config.context
    random = np.random.default_rng(1)
    tokens = random.integers(1, config.vocab_size, size + 1000).astype(np.int32)
    weights = config.mtp_weights
    return TextStream(tokens, length, size, weights, 0, False, 1, "benchmark").rows(0)


def prepare(
    side: str, config: ModelConfig, batch: int, threads: int
) -> tuple[Callable[[], float], float]:
    """A function that takes one step and returns its loss, and the process's peak megabytes before.

    Before: with everything imported, but without a model.
    """
    if side == NUMPY:
        with mock.patch.object(blas, "installed_mkl", return_value=None):
            return prepare("nanoeuler", config, batch, threads)
    rows, parameters = step_rows(config, batch), initial_parameters(config, 1)
    if side == "nanoeuler":
        from nanoeuler.backend.cpu.engine import CpuBackend
        from nanoeuler.backend.cpu.vectors import dot
        from nanoeuler.training.micro_batches import largest_divisor
        from nanoeuler.training.optimizer.adamw import AdamW
        from nanoeuler.training.state import TrainingState

        dot(np.ones(1, np.float32), np.ones(1, np.float32))
        before = peak_megabytes()
        backend = CpuBackend(threads)
        state = TrainingState(config, backend, parameters, AdamW(0.9, 0.95, 1e-8, 0.1, 1.0))
        tokens, shares = backend.runtime.slices(len(parameters))
        limit = min(tokens // config.context, -(-batch // shares))
        micro_batch_rows = largest_divisor(batch, limit)
        return lambda: state.train_step(rows, micro_batch_rows, LEARNING_RATE).loss, before
    import torch
    from pytorch_model import make_model, make_step

    if side == "compile":
        torch.compile(lambda x: x * x)(torch.ones(1))
    torch.set_num_threads(threads)
    before = peak_megabytes()
    model = make_model(config, parameters)
    step = make_step(model, model if side == "eager" else torch.compile(model), LEARNING_RATE)
    ids = torch.from_numpy(rows.ids.astype(np.int64))
    targets = torch.from_numpy(rows.targets.astype(np.int64))
    return lambda: step(ids, targets), before


def peak_megabytes() -> float:
    """Linux's high-water mark of this program; `getrusage` would start from the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def memory(side: str, preset: str, batch: int, threads: int) -> float:
    """Peak megabytes of three steps above the imports, in a process of its own.

    For the compiled side this is a second process, which finds the machine code on disk.
    """
    options = ["--memory", side, "--batches", str(batch), "--threads", str(threads)]
    command = [sys.executable, __file__, "--preset", preset, *options]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def products_only(config: ModelConfig, threads: int) -> float:
    """Tokens per second of a step that consists of matrix products, on one BLAS thread each."""
    from nanoeuler.backend.cpu import fused_products
    from nanoeuler.backend.cpu.runtime import ThreadPool
    from nanoeuler.model.flat import FlatBuffer, model_weights

    library = blas.Blas()  # a name, because it has to outlive the calls
    sgemm, tokens = library.sgemm, PRODUCT_TOKENS
    one, zero = np.float32(1), np.float32(0)
    weights = model_weights(config, np.zeros(FlatBuffer.elements(config), np.float32))
    tensors = [tensor for block in weights.blocks for tensor in vars(block).values()]
    matrices = [tensor for tensor in tensors if tensor is not None and tensor.ndim == 2]
    shapes = [matrix.shape for matrix in [*matrices, weights.heads]]

    def arrays(out: int, inputs: int) -> list[np.ndarray]:
        x, weight, output = (tokens, inputs), (out, inputs), (tokens, out)
        sizes = x, weight, weight[::-1], output, x, weight
        return [np.ones(size, np.float32) for size in sizes]

    sets = [[arrays(*shape) for shape in shapes] for _ in range(threads)]

    def work(index: int) -> None:
        for x, weight, transpose, out, dx, dweight in sets[index]:
            fused_products.linear(sgemm, x, transpose.T, out, 0, tokens)
            fused_products.linear_backward_input(sgemm, out, weight, dx, one, zero, 0, tokens)
            rows = 0, len(dweight)
            fused_products.linear_backward_weight(sgemm, out, x, dweight, one, zero, *rows)

    pool = ThreadPool(threads)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        pool.each(threads, work)
        times.append(time.perf_counter() - began)
    return threads * tokens / float(np.median(times[3:]))


def clocks() -> np.ndarray:
    """Seconds that have passed, and seconds of processors that this process has used."""
    return np.array([time.perf_counter(), time.process_time()])


def compare(preset: str, batch: int, threads: int, rounds: int, with_memory: bool) -> None:
    from peers import spread

    config = ModelConfig.from_dict({"preset": preset})
    sides = (*SIDES, *([NUMPY] if blas.installed_mkl() else []))
    steps = {side: prepare(side, config, batch, threads)[0] for side in sides}
    losses = {side: np.array([step() for _ in range(3)]) for side, step in steps.items()}
    worst = max(np.abs(losses[side] / losses["nanoeuler"] - 1).max() for side in sides)
    if worst > 1e-4:
        sys.exit(f"the losses differ by {worst:.1e}: {losses}; nothing to compare")
    repeats = max(1, 64 // batch)
    seconds: dict[str, list[np.ndarray]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, step in steps.items():
            began = clocks()
            for _ in range(repeats):
                step()
            seconds[side].append((clocks() - began) / repeats)
    times = {side: np.transpose(values) for side, values in seconds.items()}
    shape = f"B = {batch}, T = {config.context}, {rounds} rounds of {repeats} steps"
    print(f"{shape} by {blas.Blas().label}; losses agree to {worst:.0e}")
    for side in sides:
        rate = spread(batch * config.context / times[side][0], ",.0f")
        wall, processor = (spread(ratio, ".2f") for ratio in times[side] / times["nanoeuler"])
        ratios = f"{wall} times as fast, {processor} in processor time"
        beside = "" if side == "nanoeuler" else f"; nanoeuler is {ratios}"
        print(f"  {side:<10} {rate} tokens/s{beside}")
    if with_memory:
        peaks = [f"{side} {memory(side, preset, batch, threads):,.0f} MB" for side in sides]
        print("  memory     " + ", ".join(peaks))


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
    parser.add_argument("--memory", choices=(*SIDES, NUMPY), help=argparse.SUPPRESS)
    parser.add_argument("--preset", default="small")
    options = parser.parse_args()
    config = ModelConfig.from_dict({"preset": options.preset})
    if options.memory:
        step, before = prepare(options.memory, config, options.batches[0], options.threads)
        for _ in range(3):
            step()
        print(peak_megabytes() - before)
        return
    from peers import about

    print(about(options.threads))
    for batch in options.batches:
        compare(options.preset, batch, options.threads, options.rounds, not options.speed_only)
    print(f"matrix products alone: {products_only(config, options.threads):,.0f} tokens/s")


if __name__ == "__main__":
    main()
