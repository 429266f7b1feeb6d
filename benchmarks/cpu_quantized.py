"""Decoding one sequence on the CPU with weights of 8 and 4 bits, beside float32.

    python benchmarks/cpu_quantized.py                          medium, one thread
    python benchmarks/cpu_quantized.py --presets base --threads 2

Each round decodes the same number of tokens with all three in turns. Printed are medians over the
rounds with their range, also of the ratios. Weights are random.
"""

import argparse
import time

import numpy as np

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.quantized import SCHEMES, QuantizedBuffer
from nanoeuler.model.transformer import Transformer


def seconds(model: Transformer, prompt: np.ndarray, new: int) -> tuple[float, float]:
    """Time for the prompt, and for a token behind it."""
    cache = model.new_cache(1, prompt.shape[1] + new)
    began = time.perf_counter()
    logits = extend(model, cache, prompt)
    read = time.perf_counter()
    for _ in range(new):
        logits = extend(model, cache, logits.argmax(axis=1)[:, None])
    return read - began, (time.perf_counter() - read) / new


def spread(values: np.ndarray, form: str) -> str:
    low, middle, high = (format(x, form) for x in (values.min(), np.median(values), values.max()))
    return f"{middle} ({low}–{high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["medium"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    for preset in options.presets:
        config = ModelConfig.from_dict({"preset": preset})
        parameters = initial_parameters(config, 1)
        engine = CpuBackend(options.threads)
        models = {"float32": Transformer(config, parameters, engine)}
        for scheme in SCHEMES:
            weights = QuantizedBuffer.of(config, parameters, scheme)
            models[scheme] = Transformer(config, weights, engine)
        size = config.context - options.tokens
        prompt = np.random.default_rng(1).integers(0, config.vocab_size, (1, max(1, size)))
        for model in models.values():
            seconds(model, prompt, 8)
        times = np.array(
            [
                [seconds(model, prompt, options.tokens) for model in models.values()]
                for _ in range(options.rounds)
            ]
        )  # (rounds, models, 2)
        print(f"{preset}, {options.threads} threads, prompt of {prompt.shape[1]} tokens")
        for number, name in enumerate(models):
            rates = 1 / times[:, number, 1]
            ratio = times[:, 0] / times[:, number]
            print(
                f"  {name:<8} {spread(rates, ',.0f')} tokens/s, {spread(ratio[:, 1], '.2f')} ×; "
                f"prompt {spread(ratio[:, 0], '.2f')} ×"
            )


if __name__ == "__main__":
    main()
