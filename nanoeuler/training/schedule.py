"""The learning rate as a function of the step."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then `cosine` (Loshchilov & Hutter 2017) or `wsd` (warm-up, stable, decay; Hu et al. 2024).

    Cosine falls from the peak to `minimum_share` of it at the last step, so it knows the number of steps from the start:
    a longer run is another run. WSD stays at the peak until its last `decay_share` of the steps and falls linearly there:
    until that point it does not depend on the number of steps, so a run can be made longer.
    """

    kind: str
    peak: float
    total_steps: int
    warmup_steps: int
    minimum_share: float = 0.1
    decay_share: float = 0.2

    @property
    def decay_start(self) -> int:
        """First step (counted from 0) whose rate depends on the number of steps."""
        if self.kind == "cosine":
            return self.warm
        return max(self.warm, self.total_steps - math.ceil(self.total_steps * self.decay_share))

    @property
    def warm(self) -> int:
        """Steps of warm-up; at most half of a short run."""
        return min(self.warmup_steps, self.total_steps // 2)

    def rate(self, step: int) -> float:
        """Learning rate of the update numbered `step`, from 0 to total_steps − 1."""
        if step < self.warm:
            return self.peak * (step + 1) / self.warm
        if step < self.decay_start:
            return self.peak
        share = (step + 1 - self.decay_start) / max(1, self.total_steps - self.decay_start)
        fall = (1 - math.cos(math.pi * share)) / 2 if self.kind == "cosine" else share
        return self.peak * (1 - (1 - self.minimum_share) * fall)
