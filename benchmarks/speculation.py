"""Decoding of one sequence with drafts beside plain decoding, by turns.

    python benchmarks/speculation.py results/demo            the replies of a trained model
    python benchmarks/speculation.py --preset base           what a pass costs; fresh weights

A model answers twelve prompts, or continues them, at three settings of the sampler; `--prompts`
takes others from a file, a line each. Each round writes every text plainly and with drafts as
`generate` takes them, one after the other, and compares the tokens: they are the same. Reading the
prompt does not count. With fresh weights the drafts are not right and are taken all the same, so
that the cost of a pass is all that is measured. Printed are medians over the rounds with their
range.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from peers import spread

import nanoeuler
from nanoeuler.backend import make_backend
from nanoeuler.backend.capabilities import ChoosingBackend
from nanoeuler.inference.decoder import Row
from nanoeuler.inference.device_decoder import decoder_kind
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.inference.speculation import DeviceSpeculation, Drafts, Speculation
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.system import provenance

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    if options.model:
        compare(options)
    else:
        weigh(options)


def compare(options: argparse.Namespace) -> None:
    """The replies of a trained model."""
    loaded = nanoeuler.load(options.model, options.device)
    model, allowed_V, end_id = loaded.transformer, loaded.writer.allowed_V, loaded.tokenizer.end_id
    texts = options.prompts.read_text().splitlines() if options.prompts else PROMPTS
    prompts = [loaded.writer.frame(loaded.prompt(text)) for text in texts]
    print(f"{model.backend.name} on {model.backend.device_name}; {provenance.cpu_name()}")
    for name, sampling in SETTINGS.items():
        rates, ratios, costs, different = [], [], [], 0
        for round_ in range(options.rounds + 1):
            plain, drafted, count = 0.0, 0.0, 0
            brought = []
            for prompt in prompts:
                inputs = model, prompt, sampling, options.tokens, end_id, allowed_V
                seconds, expected = decode(*inputs, None)
                plain += seconds
                brought.append(Speculation.of(model))
                seconds, ids = decode(*inputs, brought[-1])
                drafted += seconds
                count += len(ids) - 1
                different += ids != expected
            passes = sum(each.passes for each in brought)
            per_pass = sum(each.tokens for each in brought) / passes
            if round_ > 0:  # the first one warms up
                rates.append(count / plain)
                ratios.append(plain / drafted)
                costs.append(drafted / plain * per_pass)
        print(f"{name}: plain {spread(rates, ',.0f')} tokens/s")
        print(f"  with drafts {spread(ratios, '.2f')} times as fast")
        drafts = np.array([each.drafted for each in brought]).sum(axis=0)
        right = np.array([each.right for each in brought]).sum(axis=0)
        shares = ", ".join(f"{share:.0%}" for share in right / np.maximum(drafts, 1))
        repeats = sum(each.repeats for each in brought)
        repeated = sum(each.right_repeats for each in brought) / max(repeats, 1)
        print(f"  {per_pass:.2f} tokens a pass; right, by head: {shares or 'no further heads'}")
        print(
            f"  {repeats / passes:.0%} of the passes repeat the text, {repeated:.2f} drafts right"
        )
        print(f"  a pass costs {spread(costs, '.2f')} of one over a token")
        if different:  # near ties, where products of other shapes round otherwise
            print(f"  the tokens of {different} of {(1 + options.rounds) * len(prompts)} differ")


def weigh(options: argparse.Namespace) -> None:
    """What passes over more tokens cost, with fresh weights, behind short texts."""
    config = ModelConfig.from_dict({"preset": options.preset or "small"})
    backend = make_backend(options.device)
    model = Transformer(config, backend.from_host(initial_parameters(config, 1)), backend)
    print(f"{backend.name} on {backend.device_name}; {provenance.cpu_name()}")
    further = config.mtp_heads - 1
    most = backend.drafted_tokens - 1
    kinds = [most] if isinstance(backend, ChoosingBackend) else sorted({1, further, most} - {0})
    plain, costs = [], {drafts: [] for drafts in kinds}
    for round_ in range(options.rounds + 1):
        seconds = pass_seconds(model, 0)
        if round_ > 0:
            plain.append(1e3 * seconds)
        for drafts in kinds:
            ratio = pass_seconds(model, drafts) / seconds
            if round_ > 0:
                costs[drafts].append(ratio)
    print(f"plain: {spread(plain, '.3f')} ms a token")
    for drafts, ratios in costs.items():
        print(f"a pass over {1 + drafts} tokens costs {spread(ratios, '.2f')} of one over a token")


def pass_seconds(model: Transformer, drafts: int) -> float:
    """Of a pass of one row, behind 40 to 180 tokens."""
    clock = time.perf_counter if model.backend.device else time.thread_time
    allowed_V, row = np.ones(model.config.vocab_size, bool), Row([1] * 40, GREEDY)
    speculation = Speculation.of(model)
    given = allowed_V, speculation if drafts else None
    decoder = decoder_kind(model)(model, 1, 200, *given)
    decoder.rows.append(row)
    passes, began = 0, 0.0
    while len(row.ids) < 140:
        if isinstance(speculation, DeviceSpeculation):
            speculation.pays = True
        else:
            speculation.from_text, speculation.heads = 0, min(drafts, speculation.heads)
            row.drafts = Drafts([0] * drafts)
        decoder.next()
        passes += 1
        if passes == 4:  # what is recorded is recorded
            began = clock()
    return (clock() - began) / (passes - 4)


if __name__ == "__main__":
    main()
