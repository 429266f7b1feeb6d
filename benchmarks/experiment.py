"""What the benchmarks of pretraining share: arguments, data, the trainer's loop, measurements."""

import argparse
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
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.depth import coarsened, refined
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import training_flops_per_token
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.growth import refined_tensors
from nanoeuler.training.micro_batches import even_share, fitting_rows
from nanoeuler.training.optimizer.choice import optimizer_of
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every such benchmark."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--config", required=True)
    made.add_argument("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    made.add_argument("--tokens", type=Path, required=True)
    made.add_argument("--tokenizer", type=Path, required=True)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    made.add_argument("--output", type=Path, help="a file to which each line is appended as JSON")
    return made


def append(path: Path | None, entry: Mapping[str, Any]) -> None:
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class Experiment:
    """Model, settings, data and engine that the arguments name."""

    def __init__(self, options: argparse.Namespace, overrides: Sequence[str] = ()):
        config = load(options.config, [*overrides, *options.set])
        self.model = ModelConfig.from_dict(config["model"])
        self.settings = Pretrain.read(config["pretrain"])
        self.store = TokenStore.open(options.tokens)
        self.tokenizer = Tokenizer.load(options.tokenizer)
        if self.tokenizer.vocab_size != self.model.vocab_size:  # ids behind the embedding's end
            size = self.tokenizer.vocab_size
            raise UserError(f"{options.tokenizer}: add --set tokenizer.vocab_size={size}")
        self.seed: int = config["seed"]
        self.backend: Backend = make_backend(
            options.device,
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
        """What the trainer takes."""
        rows = stream.rows_per_step
        fitting = fitting_rows(self.model, self.backend, stream.length, rows)
        return even_share(rows, max(1, fitting))

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
