"""Seconds from the start of a process to the end of its first training step on a GPU.

    python benchmarks/cuda_start.py --runs 3

Measured with and without the compiled kernels and the chosen algorithms of an earlier run.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST_STEP = """
import numpy as np
from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

config = ModelConfig.from_dict({"preset": "base"})
tokens = np.random.default_rng(1).integers(1, config.vocab_size, 64 * 512, dtype=np.int32)
rows = TextStream(tokens, 512, len(tokens), config.mtp_weights, 0, False, 1, "benchmark").step(0)
optimizer = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
state = TrainingState(config, CudaBackend("bf16"), initial_parameters(config, 1), optimizer)
state.train_step(rows, 64, 1e-4)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {"nothing kept": [], "kept": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            caches = {
                "CUPY_CACHE_DIR": f"{folder}/cupy",
                "XDG_CACHE_HOME": f"{folder}/cache",
                "CUDA_CACHE_PATH": f"{folder}/cuda",
            }
            for name in times:
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", FIRST_STEP],
                    cwd=Path(__file__).parents[1],
                    env=os.environ | caches,
                    check=True,
                )
                times[name].append(time.perf_counter() - began)
    for name, seconds in times.items():
        middle, spread = statistics.median(seconds), f"{min(seconds):.1f}–{max(seconds):.1f}"
        print(f"base, 64 × 512, bf16, {name}: {middle:.1f} s ({spread})")


if __name__ == "__main__":
    main()
