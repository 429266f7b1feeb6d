"""Held-out bits per byte of recipes for pretraining, with as many tokens or in equal time.

    python benchmarks/recipes.py --million-tokens 27.5 --config config/base.yaml \\
        --tokens data/corpora/NAME/tokens-4096/manifest.json \\
        --tokenizer data/corpora/NAME/tokenizer-4096/tokenizer.json --seeds 1 2

A recipe is a name in `--recipes`, a YAML file, with keys of a configuration that it sets. Each is
trained with each seed like the trainer does, one after the other; `--seconds` gives each as many
steps as take that time. The seconds that are printed are those of the steps. `--only` names the
recipes to train, and `--part 2/4` takes every fourth run, so that four GPUs share them
(CUDA_VISIBLE_DEVICES). Each result is appended to `--output`, as JSON.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from experiment import Experiment, append, parser


def runs(options: argparse.Namespace) -> Iterator[tuple[str, int, list[str]]]:
    """Name, seed and overrides of the runs that this process takes."""
    content = yaml.safe_load(options.recipes.read_text(encoding="utf-8"))
    part, parts = map(int, options.part.split("/"))
    chosen = options.only or list(content["recipes"])
    pairs = [(name, seed) for name in chosen for seed in options.seeds]
    for name, seed in pairs[part - 1 :: parts]:
        keys = content["common"] | content["recipes"][name]
        overrides = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in keys.items()
        ]
        yield name, seed, overrides


def result(options: argparse.Namespace, seed: int, overrides: list[str]) -> dict[str, Any]:
    """The last measurement of a run."""
    experiment = Experiment(options, overrides)
    grow_at = experiment.settings.grow_at
    [step_seconds] = experiment.seconds_per_step(1)  # this also compiles what the run needs
    if options.seconds:
        steps = round(options.seconds / step_seconds)
    else:
        steps = math.ceil(options.million_tokens * 1e6 / experiment.settings.batch_tokens)
    *_, last = experiment.train(seed, grow_at, steps, {steps})
    return last


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--recipes", type=Path, default=Path(__file__).with_suffix(".yaml"))
    arguments.add_argument("--only", nargs="+", metavar="NAME")
    budget = arguments.add_mutually_exclusive_group(required=True)
    budget.add_argument("--million-tokens", type=float)
    budget.add_argument("--seconds", type=float)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments.add_argument("--part", default="1/1", metavar="K/N")
    options = arguments.parse_args()
    print("bits per byte  seconds   steps  seed  recipe")
    for name, seed, overrides in runs(options):
        found = result(options, seed, overrides)
        print(
            f"{found['mean']:13.4f}  {found['seconds']:7.1f}  {found['step']:6}  {seed:4}  {name}",
            flush=True,
        )
        append(options.output, {"recipe": name, "seed": seed, **found})


if __name__ == "__main__":
    main()
