"""A server beside transformers' `generate`, by turns.

    nanoeuler export results/demo/sft --format hf --output sft-hf
    nanoeuler serve results/demo/sft &
    python benchmarks/serving_transformers.py sft-hf --url http://127.0.0.1:8000

It needs torch and transformers. transformers has no server to speak of, so its side is `generate`
in this process, on as many texts at once as there are clients: all start together and have the same
length, and nothing is sent anywhere.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from peers import spread
from serving import PROMPTS, Work, first_model, measure
from transformers import AutoModelForCausalLM, AutoTokenizer


def generate(model, tokenizer, rows: int, seconds: float, tokens: int) -> float:
    """Tokens per second of batches of that many rows."""
    texts = [PROMPTS[row % len(PROMPTS)] for row in range(rows)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 0}
    lengths = {"min_new_tokens": tokens, "max_new_tokens": tokens}
    began, written = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        model.generate(**inputs, **settings, **lengths)
        written += rows * tokens
    return written / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the model as `nanoeuler export` writes it")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--tokens", type=int, default=100, help="of each reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch; default: its own")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.folder, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.folder).eval()
    name = first_model(options.url)
    print("| clients | server, tokens/s | transformers, tokens/s | ratio |")
    print("|---|---|---|---|")
    for clients in options.clients:
        given, tokens = (clients, options.seconds), options.tokens
        work = options.url, name, *given, Work(tokens)
        rates = np.array(
            [
                (measure(*work)[0], generate(model, tokenizer, *given, tokens))
                for _ in range(options.rounds)
            ]
        )
        ours, theirs = (spread(column, ",.0f") for column in rates.T)
        ratio = spread(rates[:, 0] / rates[:, 1], ".2f")
        print(f"| {clients} | {ours} | {theirs} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
