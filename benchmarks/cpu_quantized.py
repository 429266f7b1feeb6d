"""Decoding one sequence on the CPU with weights of 8 and 4 bits, beside float32 and llama.cpp.

    python benchmarks/cpu_quantized.py                                  medium, one thread
    python benchmarks/cpu_quantized.py --preset qwen3-0.6b --llama      minutes, and 6 GB of memory

`--llama` needs the extra `gguf` and llama-cpp-python, in no lock. It reads the same numbers from a
GGUF file, with as many threads. Each round decodes the same number of tokens with all sides in
turns. Printed are medians over the rounds with their range, also of the ratios to the first side.
Weights are random. `--processor-time` takes that of the process in place of the time that passes,
for a machine with other work, and one thread. `--kv-cache` adds each with its cache in 8 bits, as
long prompts show.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peers import spread
from shapes import SHAPES, model_of

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.files import SavedModel, quantized
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.quantized import SCHEMES
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

Side = Callable[[np.ndarray, int], tuple[float, float]]
"""Seconds for a prompt, and for each of so many tokens behind it."""


def ours(model: Transformer, clock: Callable[[], float]) -> Side:
    def decode(prompt: np.ndarray, new: int) -> tuple[float, float]:
        cache = model.new_cache(1, len(prompt) + new)
        began = clock()
        logits = extend(model, cache, prompt[None])
        read = clock()
        for _ in range(new):
            logits = extend(model, cache, logits.argmax(axis=1)[:, None])
        return read - began, (clock() - read) / new

    return decode


def theirs(saved: SavedModel, dtype: str, threads: int, clock: Callable[[], float]) -> Side:
    """llama.cpp with a GGUF file of the same numbers."""
    import llama_cpp

    from nanoeuler.interchange.gguf_file import FILE, write_gguf

    with tempfile.TemporaryDirectory() as folder:
        write_gguf(Path(folder) / "gguf", saved, dtype)
        model = llama_cpp.Llama(
            str(Path(folder) / "gguf" / FILE),
            n_ctx=saved.config.context,
            n_threads=threads,
            n_threads_batch=threads,
            use_mmap=False,
            verbose=False,
        )

    def decode(prompt: np.ndarray, new: int) -> tuple[float, float]:
        model.reset()
        began = clock()
        model.eval(prompt.tolist())
        read = clock()
        for token in range(new):
            model.eval([token])
        return read - began, (clock() - read) / new

    return decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=SHAPES, default="medium")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--kv-cache", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    config = model_of(options.preset)
    config = replace(config, context=max(config.context, options.prompt + options.tokens))
    engine = CpuBackend(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        Tokenizer(build([(20, 21)])).save(tokenizer)
        saved = SavedModel(config, initial_parameters(config, 1), tokenizer, "random", None)
        sides: dict[str, Side] = {}

        def add(name: str, *model: Any) -> None:
            sides[name] = ours(Transformer(*model, engine), clock)
            if options.kv_cache:
                sides[f"{name}, cache"] = ours(Transformer(*model, engine, byte_cache=True), clock)

        add("float32", config, saved.parameters)
        for scheme, dtype in zip(SCHEMES, ("q8_0", "q4_0"), strict=True):
            small = quantized(saved, scheme)
            add(scheme, small.config, small.quantized)
            if options.llama:
                sides[f"llama.cpp {dtype}"] = theirs(small, dtype, options.threads, clock)
    prompt = np.random.default_rng(1).integers(0, config.vocab_size, options.prompt)
    for side in sides.values():
        side(prompt, 4)
    rounds = [
        [side(prompt, options.tokens) for side in sides.values()] for _ in range(options.rounds)
    ]
    prompts, tokens = np.moveaxis(np.array(rounds), 2, 0)  # (rounds, sides) each
    print(f"{options.preset}, {options.threads} threads, behind {options.prompt} tokens")
    for number, name in enumerate(sides):
        times = spread(tokens[:, 0] / tokens[:, number], ".2f")
        of_prompts = spread(prompts[:, 0] / prompts[:, number], ".2f")
        rate = spread(1 / tokens[:, number], ",.0f")
        print(f"  {name:<15} {rate} tokens/s, {times} ×; prompts {of_prompts} ×")


if __name__ == "__main__":
    main()
