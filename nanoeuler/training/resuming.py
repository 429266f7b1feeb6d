"""Which checkpoint a stage resumes from, if any, and the rows that it leaves out."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nanoeuler import log
from nanoeuler.training.checkpoint import REWIND_STEPS, Checkpoints
from nanoeuler.training.job import Job
from nanoeuler.training.mirror import Mirror


def find_checkpoint(
    job: Job, checkpoints: Checkpoints, mirror: Mirror | None
) -> dict[str, Any] | None:
    """The state of the checkpoint to resume `job` from; None starts it from the beginning.

    Checkpoints of another job are moved out of the way. Those of the mirror are fetched where they
    go further.
    """
    state = checkpoints.newest()
    if state is not None and state["fingerprint"] != job.fingerprint:
        set_aside(job, checkpoints, state)
        state = take_back(job, checkpoints)
    if mirror and mirror.fetch(state["step"] if state else None):
        state = checkpoints.newest()
    elif mirror and state:
        mirror.take()
    if state is None:
        return None
    if state["total_steps"] != job.schedule.total_steps:  # WSD: cosine fingerprints its length
        return before_decay(job, checkpoints, state)
    return state


def take_back(job: Job, checkpoints: Checkpoints) -> dict[str, Any] | None:
    """Use the checkpoints again that an earlier change of settings had set aside."""
    aside = Checkpoints(checkpoints.stale(job.fingerprint))
    state = aside.newest()
    if state is None or state["fingerprint"] != job.fingerprint:
        return None
    log.line("back", f"these settings were trained before: taking {aside.folder} up again")
    aside.move_to(checkpoints)
    with contextlib.suppress(OSError):  # somebody has put files into it
        aside.folder.rmdir()
    return checkpoints.newest()


def set_aside(job: Job, checkpoints: Checkpoints, state: Mapping[str, Any]) -> None:
    """Move the checkpoints of another job away, and say what differs."""
    kept = checkpoints.set_aside(state["fingerprint"])
    changed = changes(state["section"], asdict(job.settings))
    what = ", ".join(changed) or "data, model, seed or parent"
    log.line(
        "fresh",
        f"changed since the last run: {what}; its checkpoints are kept in {kept}, "
        "training starts from the beginning",
    )
    if len(changed) == 1 and changed[0].split()[0] in ("tokens", "epochs"):
        log.line(
            "fresh",
            "a cosine schedule is planned for its whole length; to go on from the old weights set "
            f"{job.stage}.init_from: {kept}",
        )


def before_decay(
    job: Job, checkpoints: Checkpoints, state: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The newest checkpoint that a WSD run of another length shares with this one."""
    limit = job.schedule.shared_steps(state["total_steps"])
    found = checkpoints.newest(limit) if limit else None
    if found is None:
        why = (
            f"no checkpoint from before the decay (step {limit}) is left"
            if limit
            else f"the warm-up takes half of a run of {state['total_steps']} steps"
        )
        kept = checkpoints.set_aside(state["fingerprint"])
        log.line(
            "fresh",
            f"now {job.schedule.total_steps} steps: {why}; the checkpoints are kept in {kept}, "
            "training starts from the beginning",
        )
    else:
        log.line(
            "longer",
            f"now {job.schedule.total_steps} steps: going on from step {found['step']}, "
            "before the earlier schedule's decay",
        )
    return found


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, as "key old → new"."""
    return [
        f"{key} {before.get(key)} → {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


SOON = 2
"""They are when a step fails fewer than this many steps behind rows that were left out."""


@dataclass
class Skipped:
    """The rows left out so far, because the loss or gradient of their step was not a number.

    An update of such a step changes nothing, so the first remedy is to go on without its rows. When
    the next steps fail, too, the weights are to blame: training goes back some steps, and goes on
    without the rows since (Chowdhery et al. 2022, section 5.1). What is done depends on the step
    and on the rows left out before, and never on where checkpoints happen to be. A run that was
    stopped in between therefore does the same again.
    """

    ranges: list[list[int]] = field(default_factory=list)
    """First and last of the stream's steps that are left out, in order."""
    rewinds: int = 0
    """How often rows were left out."""

    @property
    def steps(self) -> int:
        """The number of steps whose rows are left out."""
        return sum(last - first + 1 for first, last in self.ranges)

    def rows_of(self, step: int) -> int:
        """The step of the stream whose rows update `step` takes."""
        for first, last in self.ranges:
            if step < first:
                break
            step += last - first + 1
        return step

    def update_of(self, step: int) -> int | None:
        """The update that takes the rows of the stream's `step`; None for one left out."""
        if any(first <= step <= last for first, last in self.ranges):
            return None
        return step - sum(last - first + 1 for first, last in self.ranges if last < step)

    def leave_out(self, step: int) -> int:
        """Leave out what made update `step` fail; returns the update to go on with."""
        failed = self.rows_of(step)
        since = self.rows_of(max(0, step - SOON))
        again = any(last >= since for _, last in self.ranges)
        update = max(0, step - REWIND_STEPS) if again else step
        first = self.rows_of(update)
        self.ranges = [span for span in self.ranges if span[1] < first] + [[first, failed]]
        self.rewinds += 1
        return update
