"""Growth in depth against all layers from the start, in equal time: held-out bits per byte.

    python benchmarks/growth.py --config config/base.yaml --seconds 90 --grow-at none 0.3 0.5 \\
        --tokens data/corpora/NAME/tokens-4096/manifest.json \\
        --tokenizer data/corpora/NAME/tokenizer-4096/tokenizer.json \\
        --set pretrain.optimizer=muon pretrain.learning_rate=4e-3 pretrain.batch_tokens=65536 \\
        pretrain.schedule=wsd pretrain.decay_share=1 pretrain.minimum_learning_rate_share=0

Model, batch, optimizer and schedule are the configuration's `model` and `pretrain`, with the values
of `--set`. Each of `--grow-at` is a variant: `none`, or the shares of the time after which the
layers double, such as 0.5 or 0.25,0.5. Each begins with as many fewer layers as it grows, and ends
with the model of the configuration.

First the seconds of a step are measured at every depth, in turns. They say how many steps a variant
has: their time is that of `--seconds`, or of `--steps` steps of the whole model. `--flops` gives
each variant as many operations instead, where others are at work on the machine. The schedule is
that of a run of so many steps. Then each variant is trained with each seed. The seconds that are
printed are those that it really took, growth included, with the clock stopped while the model is
measured: at `--measurements` moments, and around each growth, before it and right behind it. Each
line is also appended to `--output`, as JSON.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiment import Experiment, append, parser

Shares = tuple[float, ...]


def plan(shares: Shares, costs: Sequence[float], budget: float) -> tuple[list[int], int]:
    """The steps at which a variant grows, and how many it has: together they take `budget`."""
    ends = [0.0, *shares, 1.0]
    counts = [
        round((stop - start) * budget / costs[len(shares) - part])
        for part, (start, stop) in enumerate(itertools.pairwise(ends))
    ]
    *grow_at, steps = itertools.accumulate(counts)
    return grow_at, steps


def read_shares(text: str) -> Shares:
    return () if text == "none" else tuple(sorted(map(float, text.split(","))))


def show(variant: str, seed: int, entry: Mapping[str, Any]) -> None:
    sources = "  ".join(f"{name} {value:.4f}" for name, value in entry["bits_per_byte"].items())
    loss = "grown " if entry["loss"] is None else f"{entry['loss']:6.4f}"
    print(
        f"{variant:10} seed {seed}  step {entry['step']:6}  {entry['layers']:3} layers  "
        f"{entry['seconds']:8.1f} s  loss {loss}  {sources}  mean {entry['mean']:.4f}",
        flush=True,
    )


def summarise(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> None:
    """Print the last measurement of each variant, and what it brings, by seeds."""
    first = next(iter(results))
    print(f"\n{'grow at':10}  steps  seconds  bits per byte (each seed)  less than {first}")
    for variant, by_seed in results.items():
        ends = by_seed.values()
        means = [end["mean"] for end in ends]
        gains = [results[first][seed]["mean"] - end["mean"] for seed, end in by_seed.items()]
        steps = next(iter(ends))["step"]
        seconds = statistics.mean(end["seconds"] for end in ends)
        each = " ".join(f"{value:.4f}" for value in means)
        gained = " ".join(f"{value:+.4f}" for value in gains)
        print(
            f"{variant:10}  {steps:5}  {seconds:7.1f}  {statistics.mean(means):.4f} ({each})  "
            f"{statistics.mean(gains):+.4f} ({gained})"
        )


def main() -> None:
    arguments = parser(__doc__)
    budget = arguments.add_mutually_exclusive_group(required=True)
    budget.add_argument("--seconds", type=float)
    budget.add_argument("--steps", type=int, help="the time of as many steps of the whole model")
    budget.add_argument("--flops", type=float, help="operations instead of seconds")
    arguments.add_argument("--grow-at", nargs="+", default=["none", "0.5"], metavar="SHARES")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments.add_argument("--measurements", type=int, default=4)
    options = arguments.parse_args()
    experiment = Experiment(options)
    variants = {text: read_shares(text) for text in options.grow_at}
    depths = 1 + max(map(len, variants.values()))
    if options.flops:
        costs, unit = experiment.flops_per_step(depths), "FLOPs"
    else:
        costs, unit = experiment.seconds_per_step(depths), "s"
    total = options.flops or options.seconds or options.steps * costs[0]
    for depth, cost in enumerate(costs):
        layers = experiment.model.layers // 2**depth
        print(f"{layers} layers: {cost:.4g} {unit} a step, {cost / costs[0]:.3f} of the whole")
    results: dict[str, dict[int, dict[str, Any]]] = {text: {} for text in variants}
    for seed, (text, shares) in itertools.product(options.seeds, variants.items()):
        grow_at, steps = plan(shares, costs, total)
        count = options.measurements
        measured = {round(steps * (index + 1) / count) for index in range(count)}
        for entry in experiment.train(seed, grow_at, steps, measured):
            show(text, seed, entry)
            results[text][seed] = entry
            append(options.output, {"grow_at": text, "seed": seed, **entry})
    summarise(results)


if __name__ == "__main__":
    main()
