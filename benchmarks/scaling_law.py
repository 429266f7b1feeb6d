"""Held-out bits per byte of models of many sizes, each trained on several numbers of tokens.

    python benchmarks/scaling_law.py --config config/base.yaml --output runs.jsonl --seconds 350 \\
        --tokens data/corpora/NAME/tokens-4096/manifest.json \\
        --tokenizer data/corpora/NAME/tokenizer-4096/tokenizer.json

`--runs` lists the runs. Each is trained like the trainer does, with a schedule of its own, and
appended to `--output` as JSON. Several processes with the same output share the runs, one on each
GPU (CUDA_VISIBLE_DEVICES). A run that `--seconds` leave no time for is not begun.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from experiment import Experiment, append, parser

from nanoeuler.model.spec import parameter_count, training_flops_per_token


def overrides_of(content: Mapping[str, Any], shape: str, recipe: str) -> list[str]:
    """The keys that a run sets, as `Experiment` takes them."""
    keys = {f"model.{key}": value for key, value in content["shapes"][shape].items()}
    rates = {name: keys.pop(f"model.{name}", None) for name in content["recipes"]}
    keys |= content["common"] | content["recipes"][recipe]
    keys["pretrain.learning_rate"] = rates[recipe]
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in keys.items()
    ]


def claim(output: Path, number: int) -> bool:
    """Take a run, unless another process has taken it."""
    folder = output.with_suffix(".claims")
    folder.mkdir(exist_ok=True)
    try:
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def result(
    options: argparse.Namespace, overrides: list[str], seed: int, steps: int
) -> dict[str, Any]:
    """Size, tokens, score and speed of a run. The speed is that of its second half."""
    experiment = Experiment(options, overrides)
    model, batch = experiment.model, experiment.settings.batch_tokens
    half = steps // 2
    middle, last = experiment.train(seed, [], steps, {half, steps})
    return {
        "parameters": parameter_count(model),
        "layers": model.layers,
        "dim": model.dim,
        "flops_per_token": training_flops_per_token(model, model.context),
        "steps": steps,
        "tokens": steps * batch,
        "text_tokens": len(experiment.store.tokens("train")),
        "text_bytes": experiment.store.bytes("train"),
        "tokens_per_second": (steps - half) * batch / (last["seconds"] - middle["seconds"]),
        **last,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=Path, default=Path(__file__).with_suffix(".yaml"))
    arguments.add_argument("--seconds", type=float, default=float("inf"))
    options = arguments.parse_args()
    content = yaml.safe_load(options.runs.read_text(encoding="utf-8"))
    began = time.monotonic()
    for number, (role, shape, steps, estimate, *changes) in enumerate(content["runs"]):
        left = options.seconds - (time.monotonic() - began)
        if estimate > left or not claim(options.output, number):
            continue
        chosen = {"recipe": "muon", "seed": 1} | dict(*changes)
        overrides = overrides_of(content, shape, chosen["recipe"])
        found = result(options, overrides, chosen["seed"], steps)
        append(options.output, {"role": role, "shape": shape, **chosen, **found})
        print(
            f"{time.monotonic() - began:6.1f} s  {role:6} {shape:8} {chosen['recipe']:5} "
            f"seed {chosen['seed']}  {steps:5} steps  {found['seconds']:6.1f} s  "
            f"{found['tokens_per_second']:11,.0f} tokens/s  {found['mean']:.4f} bits per byte",
            flush=True,
        )


if __name__ == "__main__":
    main()
