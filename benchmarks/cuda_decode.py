"""Decoding and reading a prompt on one GPU beside PyTorch: milliseconds per token, ratio, spread.

    python benchmarks/cuda_decode.py --preset base --rows 1 8 64
    python benchmarks/cuda_decode.py --preset qwen3-0.6b --alone --prompt 1024

Both sides run on one GPU in turns, each in a process of its own, in bf16, with the same weights.
Each round reads a prompt of half the context and writes tokens until the context is full, a token
of every row at a time, until its ids are on the host. Ours samples on the device (temperature 0.7,
top-p 0.95). PyTorch takes the likeliest token, which costs it less: compiled layers (torch.compile)
over a static cache, one CUDA graph a token, the chosen ids fed back on the device.

Reading a prompt ends with a token on the host, too; ours is also read as the first of its length,
of which nothing is recorded, and as the first of all prompts. Each side reads some prompts in a
row, as the GPU takes its time to change to the other's process. Printed are medians over the rounds
with their range. Takes about a minute and a half, most of it for torch.compile.
"""

import argparse
import functools
import multiprocessing
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

import cupy
import numpy as np
from peers import spread
from shapes import SHAPES, model_of

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.inference.decoder import Decoder, Row
from nanoeuler.inference.device_decoder import decoder_kind
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.transformer import Transformer

TimedReader = Callable[[], tuple[float, np.ndarray]]
"""Seconds, and the token behind the prompt."""

WARM_UP = 4  # tokens before the clock runs: graphs are recorded
IN_A_ROW = 11  # prompts, of which the first is not counted


class Ours:
    def __init__(self, config: ModelConfig, parameters: np.ndarray):
        backend = CudaBackend("bf16")
        self.model = Transformer(config, backend.from_host(parameters), backend)
        self.allowed_V = np.ones(config.vocab_size, bool)

    def write(
        self, prompts_BT: np.ndarray, count: int, sampling: Sampling
    ) -> tuple[float, np.ndarray]:
        """Seconds per token, and the tokens, (B, count)."""
        decoder = self.decoder(len(prompts_BT))
        decoder.rows += [Row(prompt, sampling) for prompt in prompts_BT.tolist()]
        for index in range(count):
            if index == WARM_UP:
                began = time.perf_counter()
            decoder.next()
        seconds = (time.perf_counter() - began) / (count - WARM_UP)
        return seconds, np.array([row.ids for row in decoder.rows])

    def decoder(self, rows: int) -> Decoder[Row]:
        context = self.model.config.context
        return decoder_kind(self.model)(self.model, rows, context, self.allowed_V)

    def readers(self, prompt_BT: np.ndarray) -> list[TimedReader]:
        """Read a prompt; the same as the first of its length; and as the first of all, for which
        nothing but the kernels is ready."""
        decoder, (prompt,) = self.decoder(1), prompt_BT.tolist()
        passes = decoder.cache.memory.passes

        def read() -> np.ndarray:
            decoder.cache.truncate(0, 0)
            decoder.rows[:] = [Row(prompt, GREEDY)]
            (row,), _ = decoder.next()
            return np.array(row.ids)

        def first() -> np.ndarray:
            for each in passes.values():
                each.programs.clear()
            return read()

        def first_of_all() -> np.ndarray:
            passes.clear()
            return read()

        return [functools.partial(in_a_row, each) for each in (read, first, first_of_all)]


class Peer:
    """`pytorch_decoding.Decoder` in a process of its own: once it has compiled a model, PyTorch
    makes all Python in its process slower."""

    def __init__(self, config: ModelConfig, parameters: np.ndarray):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=answer, args=(other, config, parameters))
        self.process.start()
        self.version = self.pipe.recv()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.send(None)
        self.process.join()

    def ask(self, *request: Any) -> Any:
        self.pipe.send(request)
        return self.pipe.recv()

    def writer(self, prompts_BT: np.ndarray, count: int) -> Callable[[], float]:
        self.ask("writer", prompts_BT, count)
        return lambda: self.ask("write")

    def reader(self, prompt_BT: np.ndarray) -> TimedReader:
        self.ask("reader", prompt_BT)
        return lambda: self.ask("read")


def answer(pipe: Connection, config: ModelConfig, parameters: np.ndarray) -> None:
    """Does what is asked for until that is None."""
    import torch
    from pytorch_decoding import Decoder

    peer = Decoder(config, parameters)
    pipe.send(torch.__version__)
    action: Callable[[], Any] = list
    for what, *arguments in iter(pipe.recv, None):
        if what == "write":
            pipe.send(action())
        elif what == "read":
            pipe.send(in_a_row(action))
        else:
            action = getattr(peer, what)(*arguments)
            pipe.send(None)


def in_a_row(read: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """The median of a read's seconds, and what it returns."""
    seconds = []
    for _ in range(IN_A_ROW):
        began = time.perf_counter()
        tokens = read()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:])), tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="base", choices=SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, help="tokens (default: the context)")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    options = parser.parse_args()
    config = model_of(options.preset)
    parameters = initial_parameters(config, 1)
    ours = Ours(config, parameters)
    with nullcontext() if options.alone else Peer(config, parameters) as peer:
        compare(ours, peer, config, options)


def compare(
    ours: Ours, peer: Peer | None, config: ModelConfig, options: argparse.Namespace
) -> None:
    """Print what both take, in turns."""
    random, half, rounds = np.random.default_rng(1), config.context // 2, options.rounds
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(
        f"{device}, torch {peer.version if peer else 'not used'}, CuPy {cupy.__version__};"
        f" a model of {parameter_count(config):,} parameters, bf16"
    )
    print(
        f"ms per token behind {half} to {config.context} cached tokens,"
        f" {rounds} rounds: median (least … most)"
    )
    for rows in options.rows:
        prompts = random.integers(1, config.vocab_size, (rows, half))
        ours.write(prompts, half, Sampling())
        theirs = peer and peer.writer(prompts, half)
        times = np.array(
            [
                [ours.write(prompts, half, Sampling())[0], theirs() if theirs else np.nan]
                for _ in range(rounds)
            ]
        )
        report(f"batch {rows}", times)
    length = options.prompt or config.context
    prompt = random.integers(1, config.vocab_size, (1, length))
    recorded, first, first_of_all = ours.readers(prompt)
    readers = [recorded, *([peer.reader(prompt)] if peer else [])]
    times = np.full((rounds, 2), np.nan)
    for row in times:
        found = [read() for read in readers]
        row[: len(readers)] = [seconds for seconds, _ in found]
    report(f"a prompt of {length}", times)
    for what, read in (("first of its length", first), ("first of all", first_of_all)):
        report(what, np.array([[read()[0], np.nan] for _ in range(rounds)]))
    print(f"first token of each: {[int(tokens[0]) for _, tokens in found]}")


def report(what: str, times: np.ndarray) -> None:
    line = f"  {what:<19} nanoeuler {spread(1e3 * times[:, 0], '.4f')}"
    if not np.isnan(times[0, 1]):
        line += f"; PyTorch {spread(1e3 * times[:, 1], '.4f')}"
        line += f"; ratio {spread(times[:, 1] / times[:, 0], '.2f')}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
