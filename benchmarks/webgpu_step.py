"""The WebGPU engine on this machine's adapter: products, training steps, decoding.

    python benchmarks/webgpu_step.py --presets medium base --beside cuda --kernels 8

Beside it, in turns in the same process: the engine in fp16, where the adapter reads it, and another
engine: cpu, or cuda, in fp32 (not tf32) as WebGPU and, but for products, in bf16. Each figure is
the median of several turns with the fastest and the slowest, and a ratio the other side's time over
WebGPU's in fp32. Products are given in TFLOP/s, for each of the three that a linear layer takes, in
fp16 from activations in float16; a step is forward, backward, clipping and AdamW on random tokens;
decoding takes the likeliest token at batch 1, the host waiting for the logits of each, with
matrices in float32, matrices in float16, and everything in float16. The first lines name adapters
and drivers. About two minutes on a large GPU.

`--kernels N` adds the N kernels that take the most time of a step and of a decoded token, each by
timestamps around a pass of its own. `--sizes TILE=32` and the like replace numbers of
nanoeuler/backend/webgpu/sizes.py, to compare.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from nanoeuler.backend import make_backend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.engine import WebGpuBackend
from nanoeuler.backend.webgpu.kernel_sources import FOLDER
from nanoeuler.backend.webgpu.kernels import Command
from nanoeuler.model.appending import extend
from nanoeuler.model.buffers import training_pass_bytes
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.in_use import model_in_use
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

TURNS = 5
KINDS = "float32", "matrices float16", "float16"
DECODED = 64
"""Tokens of a turn of decoding."""


def main() -> None:
    options = read_options()
    for change in options.sizes:
        name, _, value = change.partition("=")
        if not hasattr(sizes, name):
            raise SystemExit(f"--sizes {name}: sizes.py has no such number")
        setattr(sizes, name, int(value))
    engine = WebGpuBackend()
    halves = [WebGpuBackend("fp16")] if engine.device.has_halves else []
    others: list[Backend] = []
    if options.beside:
        forms = ("fp32", "bf16") if options.beside == "cuda" else ("fp32",)
        others = [make_backend(options.beside, precision=each) for each in forms]
    for each in (engine, *others):
        print(each.environment())
    sides = engine, *halves, *others
    print("beside each other:", ", ".join(f"{each.name} {each.precision}" for each in sides))
    n = options.products
    for name, shape in {"x Wᵀ": "linear", "dout W": "input", "doutᵀ x": "weight"}.items():
        times = in_turns([product(each, shape, n) for each in (engine, *halves, *others[:1])])
        report(f"{name}, {n}³", lambda each: f"{2e-12 * n**3 / each:.2f} TFLOP/s", times)
    for preset in options.presets:
        config = ModelConfig.from_dict({"preset": preset})
        tokens = options.rows * config.context
        times = in_turns([training(each, config, options.rows) for each in sides])
        title = f"{preset}, a step of {options.rows} × {config.context}"
        report(title, partial(speed, tokens), times)
        for each in (engine, *halves):
            size = training_pass_bytes(config, each, options.rows, config.context)
            print(f"    activations in {each.precision}: {1e-6 * size:,.0f} MB")
        for kind, own in zip(KINDS, (engine, engine, *halves), strict=False):
            own.halves_weights = bool(halves) and kind != "float32"
            if halves or kind == "float32":
                times = in_turns([decoding(each, config) for each in (own, *others)])
                title = f"{preset}, decoding at batch 1, {kind}"
                report(title, partial(speed, DECODED), times)
        if options.kernels:
            for each in (engine, *halves):
                for title, work in (("step", training), ("token", decoding)):
                    named = f"{preset}, {title}, {each.precision}"
                    show_kernels(each, named, work, config, options)


def in_turns(sides: list[Callable[[], Any]]) -> list[list[float]]:
    """Seconds of each side, of turns that they take after each other."""
    for side in sides:
        side()
        side()  # recorded by now
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS):
        for side, found in zip(sides, seconds, strict=True):
            began = time.perf_counter()
            side()
            found.append(time.perf_counter() - began)
    return seconds


def speed(tokens: int, seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms, {tokens / seconds:,.0f} tokens/s"


def report(title: str, show: Callable[[float], str], seconds: list[list[float]]) -> None:
    shown = [
        f"{show(statistics.median(each))} ({1e3 * min(each):.1f} to {1e3 * max(each):.1f} ms)"
        for each in seconds
    ]
    own, *others = map(statistics.median, seconds)
    ratios = "".join(f"  ratio {each / own:.2f}" for each in others)
    print(f"{title:<36} {'  beside  '.join(shown)}{ratios}", flush=True)


def show_kernels(
    engine: WebGpuBackend,
    title: str,
    work: Callable[..., Callable[[], Any]],
    config: ModelConfig,
    options: argparse.Namespace,
) -> None:
    """Print which kernels take the most of the device's time."""
    kernels, programs = engine.kernels, list[list[Command]]()
    replay = kernels.replay

    def kept(commands: list[Command]) -> None:
        programs.append(commands)
        replay(commands)

    vars(kernels)["replay"] = kept  # in front of the method
    turn = work(engine, config, *([options.rows] if work is training else []))
    turn()
    turn()
    del vars(kernels)["replay"]
    files = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.wgsl")}
    del files["common"]  # which is in front of all
    names = {
        id(pipeline): f"{name}.{entry}"
        for (text, entry), (pipeline, _) in kernels.pipelines.items()
        for name, code in files.items()
        if code.partition("struct")[0] in text  # what the file says of itself
    }
    times, counts = Counter[str](), Counter[str]()
    for (pipeline, *_), seconds in device_times(engine, programs[-1]):
        times[names[id(pipeline)]] += round(1e9 * seconds)
        counts[names[id(pipeline)]] += 1
    whole = sum(times.values())
    print(f"{title}: {1e-6 * whole:.2f} ms of the device in {sum(counts.values())} launches")
    for name, nanoseconds in times.most_common(options.kernels):
        share = f"{100 * nanoseconds / whole:.0f} %"
        print(f"    {name:<30} {1e-6 * nanoseconds:9.3f} ms {share:>5} {counts[name]:>5} launches")


def device_times(engine: WebGpuBackend, commands: list[Command]) -> list[tuple[Command, float]]:
    """Seconds of each launch, by timestamps around a pass of its own."""
    import wgpu

    kernels, usage = engine.kernels, wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    found: list[tuple[Command, float]] = []
    for first in range(0, len(commands), 1000):
        part = commands[first : first + 1000]
        queries = kernels.opened.create_query_set(type="timestamp", count=2 * len(part))
        buffer = kernels.opened.create_buffer(size=16 * len(part), usage=usage)
        encoder = kernels.opened.create_command_encoder()
        for index, (pipeline, group, grid) in enumerate(part):
            stamps = {
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * index,
                "end_of_pass_write_index": 2 * index + 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=stamps)
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)
            compute.end()
        encoder.resolve_query_set(queries, 0, 2 * len(part), buffer, 0)
        kernels.flush()
        kernels.queue.submit([encoder.finish()])
        stamped = np.frombuffer(kernels.queue.read_buffer(buffer), np.uint64).reshape(-1, 2)
        found += zip(part, (1e-9 * (stamped[:, 1] - stamped[:, 0])).tolist(), strict=True)
    return found


def product(engine: Backend, shape: str, n: int) -> Callable[[], None]:
    random = np.random.default_rng(1)
    numbers = [random.standard_normal((n, n)) for _ in range(2)]
    weight = engine.from_host(numbers[1])
    x, y = (engine.from_host(each, engine.activation) for each in numbers)
    out, dweight = (engine.empty((n, n), kind) for kind in (engine.activation, engine.dtype))
    calls: dict[str, Callable[[], None]] = {
        "linear": lambda: engine.linear(x, weight, out),
        "input": lambda: engine.linear_backward_input(x, weight, out),
        "weight": lambda: engine.linear_backward_weight(x, y, dweight, accumulate=False),
    }

    def turn() -> None:
        calls[shape]()
        engine.runtime.finish()

    return turn


@cache
def fresh(config: ModelConfig) -> np.ndarray:
    return initial_parameters(config, 1)


def training(engine: Backend, config: ModelConfig, rows: int) -> Callable[[], object]:
    state = TrainingState(config, engine, fresh(config), AdamW())
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 8 * rows * config.context)
    given = config.context, rows * config.context, config.mtp_weights, 0, True, 0, "benchmark"
    batch = TextStream(tokens.astype(np.int32), *given).rows(0)
    return lambda: state.train_step(batch, rows, 1e-4)


def decoding(engine: Backend, config: ModelConfig) -> Callable[[], None]:
    model = model_in_use(config, fresh(config), engine)

    def turn() -> None:
        cache, token = model.new_cache(1, DECODED), 1
        for _ in range(DECODED):
            logits = extend(model, cache, np.array([[token]], np.int32))
            token = int(engine.to_host(logits)[0].argmax())

    return turn


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", choices=("cuda", "cpu"))
    parser.add_argument("--presets", nargs="*", default=["medium"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--products", type=int, default=4096, metavar="N")
    parser.add_argument("--kernels", type=int, default=0, metavar="N")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="NAME=NUMBER")
    return parser.parse_args()


if __name__ == "__main__":
    main()
