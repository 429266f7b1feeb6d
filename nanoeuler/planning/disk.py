"""About how many checkpoints a stage of training leaves on disk."""

import math
from typing import NamedTuple

from nanoeuler.config.settings import Training
from nanoeuler.training.resuming import REWIND_STEPS
from nanoeuler.training.saving import EARLY
from nanoeuler.training.schedule import Schedule

MOST_EVENTS = 10_000
"""Checkpoints and measurements that are followed."""


class Kept(NamedTuple):
    """Numbers of checkpoints, and of best models beside them."""

    last: int  # when the stage is finished
    most: int  # at a time, with the one that is being written
    best: int  # at that time


def checkpoints_kept(settings: Training, steps: int, seconds: float) -> Kept:
    """Checkpoints that remain after `steps` steps that take `seconds`.

    This follows `Trainer.save_and_validate` and `Saver.remove_old`. Each measurement on held-out
    text is taken to be better than the one before.
    """
    minutes = seconds / steps / 60
    between = settings.checkpoint_minutes / minutes if minutes else math.inf  # steps
    # a longer run leaves no other number
    steps = min(steps, MOST_EVENTS * math.ceil(min(settings.validate_every, between)))
    schedule = Schedule.of(settings, steps)
    kept_for_longer = {schedule.decay_start} if schedule.kind == "wsd" else set()
    present: dict[int, int] = {}  # step → the best step when it was saved
    best = saved = step = 0
    most = (0, 0)

    def save(*, finished: bool = False) -> None:
        nonlocal saved, most
        before = len(present)
        saved, present[step] = step, best or step
        models = set(present.values()) - present.keys() if settings.keep == "best" else set()
        most = max(most, (before + 1, len(models)))
        kept = {step} | kept_for_longer
        if not finished:
            kept |= {*sorted(present)[-2:], *[s for s in present if s <= step - REWIND_STEPS][-1:]}
        for other in present.keys() - kept:
            del present[other]

    while step < steps:
        coming = {
            steps,
            settings.validate_every * (step // settings.validate_every + 1),
            saved + math.ceil(between) if between < steps else steps,
            *kept_for_longer,
        }
        step = min(s for s in coming if s > step)
        measured = step % settings.validate_every == 0 or step == steps
        if step in kept_for_longer and step < steps:
            save()
        if step - saved >= between * (EARLY if measured else 1.0):
            save()
        if measured:
            best = step
    save(finished=True)
    return Kept(len(present), *most)
