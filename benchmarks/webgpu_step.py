"""The WebGPU engine on this machine's adapter: products, training steps, decoding; all in fp32.

    python benchmarks/webgpu_step.py --presets medium base --beside cuda

Beside it, in turns in the same process, another engine: cuda in fp32 (not tf32), or cpu. Each
figure is the median of several turns, and a ratio the other engine's time over WebGPU's. Products
are given in TFLOP/s, for each of the three that a linear layer takes; a step is forward, backward,
clipping and AdamW on random tokens; decoding takes the likeliest token at batch 1, the host waiting
for each. The first line names adapter, driver and limits. About two minutes on a large GPU.

`--sizes TILE=32` and the like replace numbers of nanoeuler/backend/webgpu/sizes.py, to compare.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.backend import make_backend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.webgpu import sizes
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

TURNS = 5
DECODED = 64
"""Tokens of a turn of decoding."""


def main() -> None:
    options = read_options()
    for change in options.sizes:
        name, _, value = change.partition("=")
        if not hasattr(sizes, name):
            raise SystemExit(f"--sizes {name}: sizes.py has no such number")
        setattr(sizes, name, int(value))
    engines = [make_backend("webgpu")]
    if options.beside:
        engines.append(make_backend(options.beside, precision="fp32", residual="fp32"))
    for engine in engines:
        print(engine.environment())
    n = options.products
    for name, shape in {"x Wᵀ": "linear", "dout W": "input", "doutᵀ x": "weight"}.items():
        times = in_turns([product(engine, shape, n) for engine in engines])
        rates = [2e-12 * n**3 / each for each in times]
        report(f"{name}, {n}³", [f"{rate:.2f} TFLOP/s" for rate in rates], times)
    for preset in options.presets:
        config = ModelConfig.from_dict({"preset": preset})
        times = in_turns([training(engine, config, options.rows) for engine in engines])
        tokens = options.rows * config.context
        shown = [f"{1e3 * each:.1f} ms, {tokens / each:,.0f} tokens/s" for each in times]
        report(f"{preset}, a step of {options.rows} × {config.context}", shown, times)
        times = in_turns([decoding(engine, config) for engine in engines])
        shown = [f"{DECODED / each:.0f} tokens/s" for each in times]
        report(f"{preset}, decoding at batch 1", shown, times)


def in_turns(sides: list[Callable[[], Any]]) -> list[float]:
    """Seconds of each side, the median of turns that they take after each other."""
    for side in sides:
        side()
        side()  # recorded by now
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS):
        for side, found in zip(sides, seconds, strict=True):
            began = time.perf_counter()
            side()
            found.append(time.perf_counter() - began)
    return [statistics.median(each) for each in seconds]


def report(title: str, shown: list[str], seconds: list[float]) -> None:
    ratio = f"  ratio {seconds[1] / seconds[0]:.2f}" if len(seconds) > 1 else ""
    print(f"{title:<32} {'  beside  '.join(shown)}{ratio}", flush=True)


def product(engine: Backend, shape: str, n: int) -> Callable[[], None]:
    random = np.random.default_rng(1)
    x, y = (engine.from_host(random.standard_normal((n, n))) for _ in range(2))
    out = engine.empty((n, n))
    calls: dict[str, Callable[[], None]] = {
        "linear": lambda: engine.linear(x, y, out),
        "input": lambda: engine.linear_backward_input(x, y, out),
        "weight": lambda: engine.linear_backward_weight(x, y, out, accumulate=False),
    }

    def turn() -> None:
        calls[shape]()
        engine.runtime.finish()

    return turn


def training(engine: Backend, config: ModelConfig, rows: int) -> Callable[[], object]:
    state = TrainingState(config, engine, initial_parameters(config, 1), AdamW())
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 8 * rows * config.context)
    given = config.context, rows * config.context, config.mtp_weights, 0, True, 0, "benchmark"
    batch = TextStream(tokens.astype(np.int32), *given).rows(0)
    return lambda: state.train_step(batch, rows, 1e-4)


def decoding(engine: Backend, config: ModelConfig) -> Callable[[], None]:
    model = Transformer(config, engine.from_host(initial_parameters(config, 1)), engine)

    def turn() -> None:
        cache, token = model.new_cache(1, DECODED), 1
        for _ in range(DECODED):
            logits = extend(model, cache, np.array([[token]], np.int32))
            token = int(engine.to_host(engine.argmax(logits))[0])

    return turn


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", choices=("cuda", "cpu"))
    parser.add_argument("--presets", nargs="*", default=["medium"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--products", type=int, default=4096, metavar="N")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="NAME=NUMBER")
    return parser.parse_args()


if __name__ == "__main__":
    main()
