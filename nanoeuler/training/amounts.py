"""How long a tuning stage trains, where the configuration leaves that to its data.

A stage learns by updates. With the batches and the warm-up of tens of thousands of records, a
hundred records are over after two updates and have taught nothing. So smaller batches come first,
then more epochs. docs/tuning.md has the measurements behind the constants.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Self, TypeVar

from nanoeuler.config.settings import Tuning

UPDATES = 200
"""Updates that a stage should have at least."""
LARGEST_BATCH, SMALLEST_BATCH = 16_384, 2_048  # tokens
WARMUP_SHARE, LONGEST_WARMUP = 0.1, 100  # steps
MEASUREMENTS, LONGEST_INTERVAL = 10, 100  # steps

Settings = TypeVar("Settings", bound=Tuning)


@dataclass(frozen=True)
class Amount:
    """Numbers for the keys that may be null."""

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
