"""How our training step's cost grows on one GPU, and what its variants cost. No peer.

    python benchmarks/cuda_step_growth.py variants lengths batches models

Each line is a whole step (forward, backward, clipping, AdamW, one CUDA graph): milliseconds as the
median of five runs of a few steps, in brackets the fastest and the slowest; tokens/s, MFU and peak
memory. Takes two minutes.
"""

import argparse
import statistics
from typing import Any

import cupy
import numpy as np
from cuda_training_step import milliseconds

from nanoeuler.backend.cuda.device import peak_flops
from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count, training_flops_per_token
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

TABLES: dict[str, list[dict[str, Any]]] = {
    "variants": [
        {},
        {"residual": "fp32"},
        {"recompute": True},
        {"rows": 128},
        {"rows": 128, "recompute": True},
        {"portable": True},
        {"precision": "tf32"},
        {"precision": "fp32"},
    ],
    "qk-norm": [{}, {"qk_norm": "rms"}, {"qk_norm": "weighted"}],
    "lengths": [
        {"rows": 32768 // length, "length": length} for length in (256, 512, 1024, 2048, 4096)
    ],
    "batches": [{"rows": rows} for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)],
    "models": [{"preset": preset} for preset in ("small", "medium", "base", "large")],
}


def measure(
    preset: str = "base",
    rows: int = 64,
    length: int = 512,
    precision: str = "bf16",
    residual: str = "bf16",
    recompute: bool = False,
    portable: bool = False,
    qk_norm: str = "none",
) -> str:
    """A line of a table: the model, the shape, and what a step of it takes."""
    config = ModelConfig.from_dict({"preset": preset, "context": length, "qk_norm": qk_norm})
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, rows * length, dtype=np.int32)
    batch = TextStream(
        tokens, length, len(tokens), config.mtp_weights, 0, False, 1, "benchmark"
    ).step(0)
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    backend = CudaBackend(precision, residual, portable=portable)
    state = TrainingState(
        config,
        backend,
        initial_parameters(config, 1),
        AdamW(0.9, 0.95, 1e-8, 0.1, 1.0),
        recompute=recompute,
    )
    for _ in range(3):
        state.train_step(batch, rows, 1e-4)

    def step() -> None:
        state.start(rows, 1e-4)
        state.stage(batch)
        state.finish()

    steps = max(2, min(50, int(300 / milliseconds(step, backend.finish, 1))))
    times = [milliseconds(step, backend.finish, steps) for _ in range(5)]
    middle, memory = statistics.median(times), (pool.used_bytes() - before) / 1e9
    peak = peak_flops(backend.device.name, precision)
    mfu = (
        f"{training_flops_per_token(config, length) * len(tokens) / middle * 1e3 / peak:.1%}"
        if peak
        else "n/a"
    )
    speed = f"{middle:9.2f} ms ({min(times):.2f}–{max(times):.2f})"
    speed += f" {len(tokens) / middle * 1e3:11,.0f} tokens/s  MFU {mfu:>6}  {memory:5.1f} GB"
    return f"{preset:7}{parameter_count(config):13,} {rows:4} × {length:<5}{speed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables", nargs="*", default=list(TABLES), metavar="TABLE", help=f"of {', '.join(TABLES)}"
    )
    for name in parser.parse_args().tables:
        print(name)
        for variant in TABLES[name]:
            special = " ".join(
                f"{key}={value}"
                for key, value in variant.items()
                if key not in ("preset", "rows", "length")
            )
            print(f"  {measure(**variant)}  {special}", flush=True)
            cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
