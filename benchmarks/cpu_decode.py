"""Decoding one row with a KV cache on the CPU, beside PyTorch eager and the machine's memory bandwidth.

    python benchmarks/cpu_decode.py                     small and medium, about a minute; needs the extra `torch`
    python benchmarks/cpu_decode.py --presets small --threads 1

Each round decodes the same tokens with both sides, one after the other. Printed are medians over the rounds with their range,
the ratio's too. Bytes per token are those of the weights that a token reads: everything but the embedding and the heads 1, 2, …
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
from nanoeuler.backend.cpu.optimizer import squares
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameters_by_kind
from nanoeuler.model.transformer import Transformer, initial_parameters


def bandwidth(threads: int) -> float:
    """Bytes per second at which `threads` threads read memory: the best of 5 passes over 400 MB."""
    values = np.ones(
        100_000_000, np.float32
    )  # zeros would all be one page of memory until they are written
    parts = np.array_split(values, threads)
    squares(values[:10])
    best = float("inf")
    for _ in range(5):
        readers = [threading.Thread(target=squares, args=(part,)) for part in parts]
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
    config = ModelConfig.from_dict({"preset": preset})
    parameters = initial_parameters(config, 1)
    ours, theirs = (
        Transformer(config, parameters, CpuBackend(threads)),
        PyTorchModel(config, parameters),
    )
    prompt = np.random.default_rng(1).integers(0, config.vocab_size, (1, config.context // 2))
    new = config.context // 2

    def decode_ours() -> tuple[float, float, np.ndarray]:
        cache = ours.new_cache(1, config.context)
        began = time.perf_counter()
        logits = ours.extend(cache, prompt)
        read = time.perf_counter()
        for _ in range(new):
            logits = ours.extend(cache, logits.argmax(axis=1)[:, None])
        return read - began, time.perf_counter() - read, logits

    def decode_theirs() -> tuple[float, float, np.ndarray]:
        caches, place = theirs.new_caches(1, config.context), prompt.shape[1]
        began = time.perf_counter()
        logits = theirs.extend(caches, torch.from_numpy(prompt), 0)
        read = time.perf_counter()
        for index in range(new):
            logits = theirs.extend(caches, logits.argmax(dim=1, keepdim=True), place + index)
        return read - began, time.perf_counter() - read, logits.numpy()

    difference = np.linalg.norm(decode_ours()[2] - decode_theirs()[2]) / np.linalg.norm(
        decode_theirs()[2]
    )
    if difference > 1e-3:
        sys.exit(f"{preset}: the two models disagree by {difference:.1e}; nothing to compare")
    times = np.array(
        [[*decode_ours()[:2], *decode_theirs()[:2]] for _ in range(rounds)]
    )  # (rounds, 4)
    kinds = parameters_by_kind(config)
    read_bytes = 4 * (
        kinds["attention"] + kinds["mlp"] + kinds["norms"] + kinds["heads"] / config.mtp_heads
    )
    rate = new / times[:, 1]
    print(f"{preset}: {new} tokens behind a prompt of {prompt.shape[1]}, {rounds} rounds")
    weights = rate * read_bytes  # bytes per second
    share = f"{np.median(weights) / most:.0%} of the bandwidth"
    print(
        f"  nanoeuler      {spread(rate, ',.0f')} tokens/s; weights at {spread(weights / 1e9, '.1f')} GB/s, {share}"
    )
    print(f"  PyTorch eager  {spread(new / times[:, 3], ',.0f')} tokens/s")
    print(
        f"  ratio          {spread(times[:, 3] / times[:, 1], '.2f')}; of reading the prompt {spread(times[:, 2] / times[:, 0], '.2f')}"
    )


if __name__ == "__main__":
    main()
