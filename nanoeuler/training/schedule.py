"""How long a stage trains, and its learning rate as a function of the step."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self, TypeVar

from nanoeuler.config.settings import Training, Tuning
from nanoeuler.system.arithmetic import cosine


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then cosine or wsd.

    `cosine` (Loshchilov & Hutter 2017) falls from the peak to `minimum_share` of it at the last
    step. It needs the number of steps from the start, so a longer run is another run. `wsd`
    (warm-up, stable, decay; Hu et al. 2024) stays at the peak and falls linearly in the last
    `decay_share` of the steps. Before those it does not depend on the number of steps, so a run can
    be made longer, unless it was so short that its warm-up was cut: see `shared_steps`.
    """

    kind: Literal["cosine", "wsd"]
    peak: float
    total_steps: int
    warmup_steps: int
    minimum_share: float = Training.minimum_learning_rate_share
    decay_share: float = Training.decay_share

    @classmethod
    def of(cls, settings: Training, total_steps: int) -> Self:
        """The schedule that a stage's settings describe, over `total_steps`."""
        return cls(
            settings.schedule,
            settings.learning_rate,
            total_steps,
            settings.warmup_steps,
            settings.minimum_learning_rate_share,
            settings.decay_share,
        )

    @property
    def decay_start(self) -> int:
        """First step (counted from 0) of the fall."""
        if self.kind == "cosine":
            return self.warm
        return max(self.warm, self.total_steps - math.ceil(self.total_steps * self.decay_share))

    @property
    def warm(self) -> int:
        """Steps of warm-up; at most half of a short run."""
        return min(self.warmup_steps, self.total_steps // 2)

    def shared_steps(self, total_steps: int) -> int:
        """The first steps that have the same rates in a wsd run of `total_steps`."""
        other = replace(self, total_steps=total_steps)
        return min(self.decay_start, other.decay_start) if self.warm == other.warm else 0

    def rate(self, step: int) -> float:
        """Learning rate of the update numbered `step`, from 0 to total_steps − 1."""
        if self.total_steps == 1:
            return self.peak
        if step < self.warm:
            return self.peak * (step + 1) / self.warm
        if step < self.decay_start:
            return self.peak
        share = (step + 1 - self.decay_start) / max(1, self.total_steps - self.decay_start)
        fall = (1 - cosine(math.pi * share)) / 2 if self.kind == "cosine" else share
        return self.peak * (1 - (1 - self.minimum_share) * fall)


UPDATES = 200
"""Updates that a stage should have at least."""
LARGEST_BATCH, SMALLEST_BATCH = 16_384, 2_048  # tokens
WARMUP_SHARE, LONGEST_WARMUP = 0.1, 100  # steps
MEASUREMENTS, LONGEST_INTERVAL = 10, 100  # steps

Settings = TypeVar("Settings", bound=Tuning)


@dataclass(frozen=True)
class Amount:
    """Numbers for the keys of a tuning stage that may be null, which its data decide.

    A stage learns by updates. With the batches and the warm-up of tens of thousands of records, a
    hundred records are over after two updates and have taught nothing. So smaller batches come
    first, then more epochs. docs/tuning.md has the measurements behind the constants.
    """

    batch_tokens: int
    epochs: float
    warmup_steps: int
    validate_every: int

    @classmethod
    def of(cls, settings: Tuning, tokens: float, row: int) -> Self:
        """The numbers in `settings`, and in place of a null what suits the data.

        `tokens` are those of all records or pairs that are trained on, `row` those of a row.
        """
        usual, most = settings.EPOCHS
        tokens, epochs, batch = max(1.0, tokens), settings.epochs, settings.batch_tokens
        if batch is None:
            batch = LARGEST_BATCH
            while batch > SMALLEST_BATCH and UPDATES * batch > (epochs or usual) * tokens:
                batch //= 2
            batch = max(batch, row)
        if epochs is None:
            epochs = min(most, max(usual, math.ceil(UPDATES * batch / tokens)))
        steps = steps_of(epochs, batch, tokens, row)
        warmup, every = settings.warmup_steps, settings.validate_every
        if warmup is None:
            warmup = min(LONGEST_WARMUP, math.ceil(WARMUP_SHARE * steps))
        if every is None:
            every = min(LONGEST_INTERVAL, math.ceil(steps / MEASUREMENTS))
        return cls(batch, epochs, warmup, every)

    def steps(self, tokens: float, row: int) -> int:
        """About the steps of a stage."""
        return steps_of(self.epochs, self.batch_tokens, tokens, row)

    def put_into(self, settings: Settings) -> Settings:
        return replace(settings, **asdict(self))


def steps_of(epochs: float, batch_tokens: int, tokens: float, row: int) -> int:
    rows = max(1, math.ceil(tokens / row))
    return math.ceil(epochs * rows / min(rows, max(1, batch_tokens // row)))
