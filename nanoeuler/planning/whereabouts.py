"""How far each run of a folder is, by the files that its stages write."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.config.paths import Paths
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.gather import (
    Stage,
    in_order,
    kept_configuration,
    read_stage,
)
from nanoeuler.log import format_seconds
from nanoeuler.planning.remaining import WholeRun
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.lock import at_work


@dataclass(frozen=True)
class Whereabouts:
    """A run, how far it is in words, and what of it can be used already.

    `state`: finished, running, stopped or damaged.
    """

    name: str
    folder: Path
    words: str
    state: str
    model: bool = False  # there is one to chat with
    report: Path | None = None
    touched: float = 0.0  # when it last got further


def whereabouts(results: Path) -> list[Whereabouts]:
    """Those of all runs in the folder `results`, the newest first."""
    folders = {path.parents[1] for path in results.glob("*/*/metrics.jsonl")}
    folders |= {path.parent for path in results.glob("*/pipeline.json")}
    return sorted(map(look, sorted(folders)), key=lambda run: run.touched, reverse=True)


def look(folder: Path) -> Whereabouts:
    """How far the run in `folder` is."""
    name = folder.name
    files = [*folder.glob("*/metrics.jsonl"), *folder.glob("pipeline.json")]
    touched = max((file.stat().st_mtime for file in files), default=0.0)
    try:
        config = kept_configuration(folder)
        stages = [read_stage(folder, stage) for stage in stage_names(config, folder)]
    except UserError as error:
        return Whereabouts(name, folder, f"damaged: {error}", "damaged", touched=touched)
    report = folder / "report.html"
    model = any(stage.model for stage in stages)
    shown = report if report.is_file() else None
    current = next((stage for stage in stages if not stage.finished), None)
    if current is None:
        words = "finished" if shown else "trained; its report is not there yet"
        state = "finished" if shown else "stopped"
        return Whereabouts(name, folder, words, state, model, shown, touched)
    checkpoints = folder / current.name / "checkpoints"
    running = at_work(checkpoints)
    if not current.header:
        words = f"{current.name} has not begun"
    elif running:
        left = time_left(current, folder)
        words = step_words(current, current.last.get("step", 0)) + (f", {left}" if left else "")
    elif saved := Checkpoints(checkpoints).resumable():
        words = step_words(current, saved[-1]) + ", stopped"
    else:
        words = f"{current.name} stopped before its first checkpoint"
    state = "running" if running else "stopped"
    return Whereabouts(name, folder, words, state, model, shown, touched)


def stage_names(config: Mapping[str, Any], folder: Path) -> list[str]:
    """The training stages of a run, in the order in which they run."""
    try:
        return Paths(config).stages
    except (LookupError, TypeError):  # stages that were run by hand keep no configuration
        return in_order({path.parent.name for path in folder.glob("*/metrics.jsonl")})


def step_words(stage: Stage, step: int) -> str:
    total = stage.header.get("total_steps")
    if not total:
        return f"{stage.name} at step {step:,}"
    return f"{stage.name} at step {step:,} of {total:,} ({step / total:.0%})"


def time_left(stage: Stage, folder: Path) -> str | None:
    """The time until the stage ends, and until the whole run does."""
    speed, total = stage.tokens_per_second, stage.header.get("total_steps")
    step, tokens = stage.last.get("step", 0), stage.last.get("tokens", 0)
    if not (speed and total and step):
        return None
    left = (total / step - 1) * tokens / speed
    words = f"about {format_seconds(left)} left"
    whole = WholeRun(folder / stage.name / "train.log").seconds(stage.name, speed, left)
    return words + (f", {format_seconds(whole)} of the whole run" if whole is not None else "")
