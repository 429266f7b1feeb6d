"""The measurements on held-out data that decide which model is handed on, and when to stop."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NOTICEABLE = 0.01
"""Share by which the best score is better than the last one before that is told."""


@dataclass
class Measurements:
    """State of the measurements so far."""

    best_step: int | None = None
    best_score: float = math.inf
    """Lower is better."""
    best_parameters: np.ndarray | None = None
    """Parameters of the best model, flat, until they are on disk."""
    last: int | None = None
    """The step of the last one."""
    last_score: float = field(default=math.nan, compare=False)
    """Its score, if it was made since the start."""
    worse: int = 0
    """How many were made since the best one."""

    @classmethod
    def restored(cls, saved: Mapping[str, Any], steps: Container[int]) -> "Measurements":
        """Those that a checkpoint holds. The best counts if its step is one of `steps`."""
        found = cls(last=saved["validated"], worse=saved["worse"])
        if saved["best"] is not None and saved["best"]["step"] in steps:
            found.take_best(saved["best"]["step"], saved["best"]["score"])
        return found

    @property
    def saved(self) -> dict[str, Any]:
        """The state as a checkpoint keeps it."""
        best = {"step": self.best_step, "score": self.best_score}
        return {
            "best": None if self.best_step is None else best,
            "validated": self.last,
            "worse": self.worse,
        }

    @property
    def ended_worse(self) -> bool:
        """Was an earlier model noticeably better than the last one?"""
        return 0 < (1 + NOTICEABLE) * self.best_score < self.last_score

    @property
    def compared(self) -> str:
        """Says so."""
        return (
            f"step {self.best_step} was better on held-out data, {self.best_score:.4g} beside "
            f"{self.last_score:.4g} at the end, which is handed on; keep: best hands on the better "
            "one"
        )

    def add(self, step: int, score: float) -> None:
        """Count a measurement. One that is not a number is the best only if it is the first."""
        self.last, self.last_score = step, score
        if self.best_step is None or score < self.best_score:
            self.take_best(step, score)
            self.worse = 0
        else:
            self.worse += 1

    def take_best(self, step: int, score: float) -> None:
        self.best_step, self.best_score = step, math.inf if math.isnan(score) else score
        self.best_parameters = None

    def forget_best(self) -> None:
        self.best_step, self.best_score, self.worse = None, math.inf, 0
        self.best_parameters = None
