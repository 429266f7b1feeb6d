"""When checkpoints are due, a thread that writes them beside training, and which of them stay."""

import copy
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from nanoeuler.config.settings import Training
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.resuming import REWIND_STEPS
from nanoeuler.training.schedule import Schedule

EARLY = 0.5
"""Share of the time between two checkpoints after which a measurement on held-out data, which may
take long, waits for the next."""


class Saver:
    """Writes the checkpoints of a stage."""

    def __init__(self, checkpoints: Checkpoints, settings: Training, schedule: Schedule):
        self.checkpoints, self.settings, self.schedule = checkpoints, settings, schedule
        self.thread = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None
        self.step: int | None = None
        """Of the checkpoint that was handed over last, or from which training resumed."""
        self.handed_over = time.monotonic()

    def due(self, share: float = 1.0) -> bool:
        """Whether `share` of the time between checkpoints has passed since the last one."""
        passed = time.monotonic() - self.handed_over
        return passed >= share * 60 * self.settings.checkpoint_minutes

    def begin(
        self,
        states: Sequence[tuple[int, Mapping[str, np.ndarray]]],
        config: ModelConfig,
        info: dict[str, Any],
    ) -> None:
        """Begin to write the tensors of some steps, and then delete what nothing needs any more.

        Training resumes from the last of `states`, with `info` as it is now. Nobody may change the
        tensors. The checkpoint before must have been finished.
        """
        assert self.writing is None
        last, info = states[-1][0], copy.deepcopy(info)

        def write() -> None:
            self.checkpoints.require_place()
            for step, tensors in states:
                self.checkpoints.save(step, config, tensors, info)
            self.remove_old(last, finished=info["finished"])

        self.writing = self.thread.submit(write)
        self.step, self.handed_over = last, time.monotonic()

    def notice(self) -> None:
        """Raise what went wrong with a checkpoint, if that is known by now."""
        if self.writing is not None and self.writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises what went wrong with it."""
        if self.writing is not None:
            self.writing.result()
            self.writing = None

    def remove_old(self, step: int, *, finished: bool) -> None:
        """Keep those from which training may resume, and the best that each of them names.

        It may end with those weights. When the stage is finished, nothing else needs them.
        """
        present = self.checkpoints.resumable()
        resumed = {present[-1]}
        if not finished:
            earlier = [number for number in present if number <= step - REWIND_STEPS]
            resumed |= {*present[-2:], *earlier[-1:]}  # if the last is damaged, and to rewind to
        if self.schedule.kind == "wsd":
            resumed.add(self.schedule.decay_start)
        best = set()
        if self.settings.keep == "best":
            kept = resumed & set(present)
            best = {self.checkpoints.best_before(number) for number in kept}
        self.checkpoints.remove_all_but(resumed | best)
        if finished:
            for number in best & set(present) - resumed:
                self.checkpoints.keep_weights_alone(number)
