"""Drafts by a model's further heads beside plain decoding of one sequence, by turns.

    python benchmarks/speculation.py results/demo            the replies of a trained model
    python benchmarks/speculation.py --preset base           what a pass costs; fresh weights

A model answers twelve prompts, or continues them, at three settings of the sampler. Each round
writes every text plainly and with all drafts, one after the other, and compares the tokens: they
are the same. Reading the prompt does not count. With fresh weights no draft is right, so that the
cost of a pass is all that is measured: it pays when it gives more tokens than that. Printed are
medians over the rounds with their range.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import nanoeuler
from nanoeuler import provenance
from nanoeuler.backend import make_backend
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.inference.speculation import Speculation
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer

SETTINGS = {
    "greedy": GREEDY,
    "temperature 0.7, top-p 0.95": Sampling(),
    "temperature 1": Sampling(temperature=1.0, top_p=1.0),
}
PROMPTS = (
    "Where does Bea live?",
    "What colour is Hild's door?",
    "What instrument can Bram play?",
    "Who is Hild?",
    "Hello!",
    "Tell me about the isles.",
    "Who lives in Fennick?",
    "What does Olaf eat?",
    "Write a short letter to Vera.",
    "Which animal belongs to Zeno?",
    "What is the Wren?",
    "The harbour",
)
NO_COST = -1e-6  # of a draft, so that always all of them are taken


def decode(
    model: Transformer,
    prompt: list[int],
    sampling: Sampling,
    tokens: int,
    end_id: int,
    allowed_V: np.ndarray,
    speculation: Speculation | None,
) -> tuple[float, list[int]]:
    """Seconds behind the first token, and the tokens: by the clock with a device, otherwise of the
    one thread that decodes, so that other programs do not count."""
    clock = time.perf_counter if model.backend.device else time.thread_time
    decoding = Decoding(model, [prompt], sampling, tokens, end_id, allowed_V, 0, speculation)
    decoding.step()
    began = clock()
    while decoding.step():
        pass
    return clock() - began, decoding.continuations[0].ids


def spread(values: list[float], form: str) -> str:
    """Median (smallest … largest)."""
    return "{0:{3}} ({1:{3}} … {2:{3}})".format(np.median(values), min(values), max(values), form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    if options.model:
        loaded = nanoeuler.load(options.model, options.device)
        model, allowed_V = loaded.transformer, loaded.writer.allowed_V
        end_id = loaded.tokenizer.end_id
        prompts = [loaded.writer.frame(loaded.prompt(prompt)) for prompt in PROMPTS]
    else:
        config = ModelConfig.from_dict({"preset": options.preset or "small"})
        backend = make_backend(options.device)
        model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
        prompts, allowed_V, end_id = [[1, 2, 3]], np.ones(config.vocab_size, bool), -1
    print(f"{model.backend.name} on {model.backend.device_name}; {provenance.cpu_name()}")
    heads, fresh = model.config.mtp_heads, options.model is None
    for name, sampling in list(SETTINGS.items())[: 1 if fresh else None]:
        rates, ratios, costs, different = [], [], [], 0
        speculation = Speculation(heads, NO_COST)
        for round_ in range(options.rounds + 1):
            plain, drafted, count = 0.0, 0.0, 0
            if round_ == 1:  # the first one warms up
                speculation = Speculation(heads, NO_COST)
                rates, ratios, costs = [], [], []
            passes, tokens = speculation.passes, speculation.tokens
            for prompt in prompts:
                inputs = model, prompt, sampling, options.tokens, end_id, allowed_V
                seconds, expected = decode(*inputs, None)
                plain += seconds
                seconds, ids = decode(*inputs, speculation)
                drafted += seconds
                count += len(ids) - 1
                different += ids != expected
            rates.append(count / plain)
            ratios.append(plain / drafted)
            per_pass = (speculation.tokens - tokens) / (speculation.passes - passes)
            costs.append(drafted / plain * per_pass)
        shares = ", ".join(f"{share:.0%}" for share in speculation.acceptance)
        print(f"{name}: plain {spread(rates, ',.0f')} tokens/s")
        print(f"  with drafts {spread(ratios, '.2f')} times as fast")
        print(f"  {speculation.tokens_per_pass:.2f} tokens a pass; right, by head: {shares}")
        print(f"  a pass over {heads} tokens costs {spread(costs, '.2f')} of one over a token")
        if different:  # near ties, where products of other shapes round otherwise
            print(f"  the tokens of {different} of {(1 + options.rounds) * len(prompts)} differ")


if __name__ == "__main__":
    main()
