"""Measurements: those on held-out data, which decide which model is handed on and when to stop, and
those of every step for machines, one JSON object a line in `metrics.jsonl`."""

import contextlib
import json
import math
import os
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.storage.files import MOST_LINES, atomic_write, explain_os_errors, read_text

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


class Metrics:
    """Appends lines to a file. Each is on disk when `write` returns, so a kill loses none."""

    def __init__(self, path: Path):
        self.path = path

    def restart(self, header: dict[str, Any]) -> None:
        """Start a new file with `header`, the line that describes the run."""
        self.refuse_link()
        with atomic_write(self.path) as file:
            file.write(json.dumps(header) + "\n")

    def cut_back(self, header: dict[str, Any], step: int, *, validated: bool) -> None:
        """Drop the measurements behind `step`, at which training resumes.

        `validated`: the checkpoint includes the validation of that step, so its line stays.
        """
        self.refuse_link()
        kept = [header]
        lines = read_text(self.path, MOST_LINES).splitlines() if self.path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # half a line: the trainer was killed while writing
                continue
            at = entry.get("step")
            if at is None or "finished" in entry:
                continue
            if at < step or (at == step and (validated or "validation" not in entry)):
                kept.append(entry)
        with atomic_write(self.path) as file:
            file.writelines(json.dumps(entry) + "\n" for entry in kept)

    def refuse_link(self) -> None:
        """Raise `UserError` for a link, whose target would be replaced."""
        if self.path.is_symlink():
            raise UserError(
                f"{self.path}: a link to {os.path.realpath(self.path)}, which would be replaced; "
                "delete the link"
            )

    def write(self, **values: Any) -> None:
        try:
            with explain_os_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except FileNotFoundError as error:
            raise moved(self.path.parent) from error


def moved(folder: Path) -> UserError:
    return UserError(
        f"{folder}: was moved or deleted while the stage ran; put it back, or name its new place, "
        "and run again, which resumes from the last checkpoint"
    )


class Throughput:
    """Counts the work since the last line in metrics.jsonl, and the time that it took."""

    def __init__(self, tokens_per_step: int, peak_flops: float | None):
        """`peak_flops` is what the device can do in a second; None where that is unknown."""
        self.tokens_per_step, self.peak_flops = tokens_per_step, peak_flops
        self.restart()

    def restart(self) -> None:
        self.began = time.monotonic()
        self.tokens, self.flops = 0, 0.0

    def add_step(self, flops: float) -> None:
        self.tokens += self.tokens_per_step
        self.flops += flops

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that the context takes."""
        began = time.monotonic()
        yield
        self.began += time.monotonic() - began

    def measure(self) -> tuple[float, float | None]:
        """Tokens per second, and floating-point operations per second over the peak ("MFU")."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        mfu = self.flops / seconds / self.peak_flops if self.peak_flops else None
        return self.tokens / seconds, mfu
