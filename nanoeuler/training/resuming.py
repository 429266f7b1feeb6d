"""Which checkpoint a stage resumes from, if any."""

from collections.abc import Mapping
from typing import Any

from nanoeuler import log
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.job import Job


def find_checkpoint(job: Job, checkpoints: Checkpoints) -> dict[str, Any] | None:
    """The state of the checkpoint to resume `job` from; None starts it from the beginning.

    Checkpoints of another job are moved out of the way.
    """
    state = checkpoints.newest()
    if state is None:
        return None
    if state["fingerprint"] != job.fingerprint:
        set_aside(job, checkpoints, state)
        return None
    if state["total_steps"] != job.schedule.total_steps:  # WSD: cosine fingerprints its length
        return before_decay(job, checkpoints, state)
    return state


def set_aside(job: Job, checkpoints: Checkpoints, state: Mapping[str, Any]) -> None:
    """Move the checkpoints of another job away, and say what differs."""
    kept = checkpoints.set_aside(state["fingerprint"])
    changed = changes(state["section"], job.section)
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
    limit = min(state["decay_start"], job.schedule.decay_start)
    found = checkpoints.newest(limit)
    if found is None:
        log.line(
            "fresh",
            f"no checkpoint from before the decay (step {limit}) is left; "
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
