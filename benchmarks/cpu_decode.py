"""Decoding one sequence with a KV cache on the CPU, beside PyTorch eager and the memory bandwidth.

    python benchmarks/cpu_decode.py                     small and medium, about a minute
    python benchmarks/cpu_decode.py --presets small --threads 1

Needs the extra `torch`.

Each round decodes the same tokens with both sides, one after the other. Printed are medians over
the rounds with their range, also of the ratio. Bytes per token are those of the weights that a
token reads: all but the embedding and the heads 1, 2, …
"""

import argparse
import sys
import threading
import time

import numpy as np
import torch
from peers import about, spread
from pytorch_model import PyTorchModel

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.cpu.vectors import dot
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameters_by_kind
from nanoeuler.model.transformer import Transformer


def bandwidth(threads: int) -> float:
    """Bytes per second at which `threads` threads read memory: the best of 5 passes over 400 MB."""
    # zeros would all share one page of memory until they are written
    values = np.ones(100_000_000, np.float32)
    parts = np.array_split(values, threads)
    dot(values[:10], values[:10])
    best = float("inf")
    for _ in range(5):
        readers = [threading.Thread(target=dot, args=(part, part)) for part in parts]
        began = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = min(best, time.perf_counter() - began)
    return values.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["small", "medium"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(about(options.threads))
    most = max(bandwidth(threads) for threads in {1, options.threads})
    print(f"memory read at {most / 1e9:.1f} GB/s")
    for preset in options.presets:
        compare(preset, options.threads, options.rounds, most)


def compare(preset: str, threads: int, rounds: int, most: float) -> None:
    """`most` is the memory bandwidth in bytes per second."""
    config = ModelConfig.from_dict({"preset": preset})
    parameters = initial_parameters(config, 1)
    ours = Transformer(config, parameters, CpuBackend(threads))
    theirs = PyTorchModel(config, parameters)
    prompt = np.random.default_rng(1).integers(0, config.vocab_size, (1, config.context // 2))
    new = config.context // 2

    def decode_ours() -> tuple[float, float, np.ndarray]:
        cache = ours.new_cache(1, config.context)
        began = time.perf_counter()
        logits = extend(ours, cache, prompt)
        read = time.perf_counter()
        for _ in range(new):
            logits = extend(ours, cache, logits.argmax(axis=1)[:, None])
        return read - began, time.perf_counter() - read, logits

    def decode_theirs() -> tuple[float, float, np.ndarray]:
        caches = theirs.new_caches(1, config.context)
        began = time.perf_counter()
        logits = theirs.extend(caches, torch.from_numpy(prompt), 0)
        read = time.perf_counter()
        for position in range(prompt.shape[1], prompt.shape[1] + new):
            logits = theirs.extend(caches, logits.argmax(dim=1, keepdim=True), position)
        return read - began, time.perf_counter() - read, logits.numpy()

    expected = decode_theirs()[2]
    difference = np.linalg.norm(decode_ours()[2] - expected) / np.linalg.norm(expected)
    if difference > 1e-3:
        sys.exit(f"{preset}: the two models disagree by {difference:.1e}; nothing to compare")
    rows = [[*decode_ours()[:2], *decode_theirs()[:2]] for _ in range(rounds)]
    our_prompt, our_decoding, their_prompt, their_decoding = np.array(rows).T  # seconds by round
    kinds = parameters_by_kind(config)
    first_head = kinds["heads"] / config.mtp_heads
    read_bytes = 4 * (kinds["attention"] + kinds["mlp"] + kinds["norms"] + first_head)
    print(f"{preset}: {new} tokens behind a prompt of {prompt.shape[1]}, {rounds} rounds")
    rate = new / our_decoding
    weights = rate * read_bytes  # bytes per second
    read = f"weights at {spread(weights / 1e9, '.1f')} GB/s"
    share = f"{np.median(weights) / most:.0%} of the bandwidth"
    print(f"  nanoeuler      {spread(rate, ',.0f')} tokens/s; {read}, {share}")
    print(f"  PyTorch eager  {spread(new / their_decoding, ',.0f')} tokens/s")
    ratio = spread(their_decoding / our_decoding, ".2f")
    prompt_ratio = spread(their_prompt / our_prompt, ".2f")
    print(f"  ratio          {ratio}; of reading the prompt {prompt_ratio}")


if __name__ == "__main__":
    main()
