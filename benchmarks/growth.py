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

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.backend import make_backend
from nanoeuler.backend.ops import Backend
from nanoeuler.config import load
from nanoeuler.config.settings import Pretrain
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.depth import coarsened, refined
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import training_flops_per_token
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.growth import refined_tensors
from nanoeuler.training.micro_batches import largest_divisor
from nanoeuler.training.optimizer.choice import optimizer_of
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

Shares = tuple[float, ...]


class Experiment:
    """What all variants have in common."""

    def __init__(self, config: Mapping[str, Any], tokens: Path, tokenizer: Path, device: str):
        self.model = ModelConfig.from_dict(config["model"])
        self.settings = Pretrain.read(config["pretrain"])
        self.store, self.tokenizer = TokenStore.open(tokens), Tokenizer.load(tokenizer)
        self.backend: Backend = make_backend(
            device,
            precision=self.settings.precision,
            residual=self.settings.residual_precision,
        )

    def stream(self, seed: int) -> TextStream:
        return TextStream(
            self.store.tokens("train"),
            self.model.context,
            self.settings.batch_tokens,
            self.model.mtp_weights,
            self.tokenizer.end_id,
            self.settings.document_mask,
            seed,
            name="pretrain",
        )

    def state(self, model: ModelConfig, parameters: np.ndarray) -> TrainingState:
        return TrainingState(model, self.backend, parameters, optimizer_of(self.settings))

    def micro_batch_rows(self, stream: TextStream) -> int:
        """What the trainer takes: all rows at once on a GPU, slices on a CPU."""
        tokens, shares = self.backend.slices(FlatBuffer.elements(self.model))
        rows = stream.rows_per_step
        return largest_divisor(rows, max(1, min(tokens // stream.length, -(-rows // shares))))

    def flops_per_step(self, depths: int) -> list[float]:
        """Operations of a step of the whole model, of the next shallower one, and so on."""
        models = (coarsened(self.model, depth) for depth in range(depths))
        length, tokens = self.model.context, self.settings.batch_tokens
        return [tokens * training_flops_per_token(model, length) for model in models]

    def seconds_per_step(self, depths: int, rounds: int = 3) -> list[float]:
        """Fastest seconds of a step of the whole model, of the next shallower one, and so on."""
        stream = self.stream(0)
        rows, count = stream.step(0), self.micro_batch_rows(stream)
        durations: list[list[float]] = [[] for _ in range(depths)]
        for turn in range(rounds):
            for depth in range(depths):
                model = coarsened(self.model, depth)
                state = self.state(model, initial_parameters(model, 0))
                steps = 0 if turn else 3  # a first time, without the clock
                for _ in range(2 + steps):
                    state.train_step(rows, count, 0.0)
                began, steps = time.perf_counter(), 0
                while steps < 2 or time.perf_counter() - began < 1.0:
                    state.train_step(rows, count, 0.0)
                    steps += 1
                durations[depth].append((time.perf_counter() - began) / steps)
                del state
        return [min(each) for each in durations]  # others may be at work on this machine

    def measured(self, model: Transformer) -> dict[str, float]:
        """Held-out bits per byte of each source."""
        return {
            source: bits_per_byte(
                model,
                self.store.tokens("validation", source),
                self.store.bytes("validation", source),
                self.tokenizer,
                document_mask=self.settings.document_mask,
                limit_tokens=self.settings.validation_tokens,
            ).bits_per_byte
            for source in self.store.sources("validation")
        }

    def train(
        self, seed: int, grow_at: Sequence[int], steps: int, measured: set[int]
    ) -> Iterator[dict[str, Any]]:
        """Train like the trainer; yields the measurements."""
        model = coarsened(self.model, len(grow_at))
        stream, schedule = self.stream(seed), Schedule.of(self.settings, steps)
        rows = self.micro_batch_rows(stream)
        state = self.state(model, initial_parameters(model, seed, self.settings.embedding_std))
        state.stage(stream.step(0))
        seconds, began = 0.0, time.perf_counter()
        for step in range(1, steps + 1):
            state.start(rows, schedule.rate(step - 1))
            if step < steps:
                state.stage(stream.step(step))
            loss = state.finish().first_head_loss
            seconds += time.perf_counter() - began
            if step in measured or step in grow_at:
                yield line(step, state, seconds, loss, self.measured(state.model))
            began = time.perf_counter()
            if step in grow_at:
                tensors, model = refined_tensors(state), refined(model)
                del state
                state = self.state(model, np.zeros(FlatBuffer.elements(model), np.float32))
                state.load(tensors, step)
                state.stage(stream.step(step))
                seconds += time.perf_counter() - began
                yield line(step, state, seconds, None, self.measured(state.model))
                began = time.perf_counter()


def line(
    step: int, state: TrainingState, seconds: float, loss: float | None, held_out: dict[str, float]
) -> dict[str, Any]:
    return {
        "step": step,
        "layers": state.config.layers,
        "seconds": seconds,
        "loss": loss,
        "bits_per_byte": held_out,
        "mean": statistics.mean(held_out.values()),
    }


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--seconds", type=float)
    budget.add_argument("--steps", type=int, help="the time of as many steps of the whole model")
    budget.add_argument("--flops", type=float, help="operations instead of seconds")
    parser.add_argument("--grow-at", nargs="+", default=["none", "0.5"], metavar="SHARES")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--measurements", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config = load(options.config, options.set)
    experiment = Experiment(config, options.tokens, options.tokenizer, options.device)
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
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"grow_at": text, "seed": seed, **entry}) + "\n")
    summarise(results)


if __name__ == "__main__":
    main()
