"""What there is, and what to type next: the runs of this folder, and the end of a run.

`nanoeuler` without arguments prints the first; `make demo` ends with the second:

python -m nanoeuler.cli.greeting config/config.yaml
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import in_order
from nanoeuler.corpus.sources.own_text import warning_for
from nanoeuler.errors import UserError
from nanoeuler.log import format_seconds, printable
from nanoeuler.planning.remaining import WholeRun
from nanoeuler.shipped import find
from nanoeuler.storage.files import read_json
from nanoeuler.version import __version__

if TYPE_CHECKING:
    from nanoeuler.evaluation.report.gather import Stage

RESULTS = Path("results")
SMALL_MODEL = "models/novels"
"""It is shipped, as are the configurations."""
SHOWN = 8
"""Runs that are listed; `nanoeuler runs` lists all."""


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


def greeting() -> str:
    """The runs in ./results, and the commands to go on with, as they must be typed here."""
    runs, ours = whereabouts(RESULTS), command()
    lines = [f"nanoeuler {__version__} trains a language model from scratch, and talks to it."]
    if runs:
        width = max(len(run.name) for run in runs[:SHOWN])
        lines += ["", f"runs in {RESULTS}:"]
        lines += [f"  {run.name:<{width}}  {run.words}" for run in runs[:SHOWN]]
        if len(runs) > SHOWN:
            lines.append(f"  … and {len(runs) - SHOWN} more, see `{ours} runs`")
    steps = []
    by_name = {run.name: run for run in runs}
    if "demo" not in by_name or by_name["demo"].state == "stopped":
        steps.append((f"{ours} run", "the demo: from raw text to a model that chats"))
    stopped = ((run, config(run)) for run in runs if run.state == "stopped")
    if resumable := next((each for each in stopped if each[1]), None):
        steps.append((f"{ours} run {resumable[1]}", f"resume {resumable[0].name}"))
    if running := next((run for run in runs if run.state == "running"), None):
        steps.append((f"{ours} watch {running.folder}", "see it learn, in a page that stays true"))
    if model := next((run for run in runs if run.model), None):
        steps.append((f"{ours} chat {model.folder}", "talk to its model"))
    else:
        steps.append((f"{ours} chat {SMALL_MODEL}", "try a model before you train one"))
    if reported := next((run for run in runs if run.report), None):
        steps.append((f"{opener()}{reported.report}", "read its report"))
    steps.append((f"{ours} plan config/small.yaml", "what a real run would cost here"))
    steps.append((f"{ours} train my-novel.txt", "a model of your own text"))
    steps.append((f"{ours} --help", "all commands"))
    wide = max(len(typed) for typed, _ in steps) + 2
    lines += ["", "next:", *(f"  {typed:<{wide}}{meaning}" for typed, meaning in steps)]
    return printable("\n".join(lines))


def config(run: Whereabouts) -> Path | None:
    """The configuration that a run was probably started with, if it is where one would be."""
    files = (run.folder / "config.yaml", Path("config", f"{run.name}.yaml"))
    return next((file for file in files if find(file).is_file()), None)


def opener() -> str:
    """The program that opens a page in a browser, with a space behind it; empty without one."""
    program = "open" if sys.platform == "darwin" else "xdg-open"
    return f"{program} " if shutil.which(program) else ""


def next_steps(config: Mapping[str, Any]) -> str:
    """Lines about a finished run: report, model, the command that chats, and prompts to try."""
    paths = Paths(config)
    model = paths.model_folder(paths.last_stage)
    lines = [
        f"report   {paths.report}",
        f"model    {model}",
        f"chat     {command()} chat {model}",
    ]
    for number, prompt in enumerate(config["evaluate"]["prompts"][:3]):
        lines.append(f"{'try' if number == 0 else '':8} {prompt}")
    manifest = Path(paths.corpus_manifest)
    sources = read_json(manifest)["sources"] if manifest.is_file() else {}
    if little := warning_for(sources, config["pretrain"]["init_from"]):
        lines += ["", *textwrap.wrap(little, 100)]
    return printable("\n".join(["", *lines]))


def command() -> str:
    """The command `nanoeuler` as it must be typed here: with its folder unless that is on PATH."""
    if shutil.which("nanoeuler"):
        return "nanoeuler"
    script = Path(sys.executable).parent / "nanoeuler"
    if script.exists():
        return os.path.relpath(script)
    return f"{os.path.relpath(sys.executable)} -m nanoeuler"


# ---- how far each run is, by the files that its stages write


def whereabouts(results: Path) -> list[Whereabouts]:
    """Those of all runs in the folder `results`, the newest first."""
    folders = {path.parents[1] for path in results.glob("*/*/metrics.jsonl")}
    folders |= {path.parent for path in results.glob("*/pipeline.json")}
    return sorted(map(look, sorted(folders)), key=lambda run: run.touched, reverse=True)


def look(folder: Path) -> Whereabouts:
    """How far the run in `folder` is."""
    from nanoeuler.evaluation.report.gather import kept_configuration, read_stage
    from nanoeuler.training.checkpoint import Checkpoints
    from nanoeuler.training.lock import at_work

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


def step_words(stage: "Stage", step: int) -> str:
    total = stage.header.get("total_steps")
    if not total:
        return f"{stage.name} at step {step:,}"
    return f"{stage.name} at step {step:,} of {total:,} ({step / total:.0%})"


def time_left(stage: "Stage", folder: Path) -> str | None:
    """The time until the stage ends, and until the whole run does."""
    speed, total = stage.tokens_per_second, stage.header.get("total_steps")
    step, tokens = stage.last.get("step", 0), stage.last.get("tokens", 0)
    if not (speed and total and step):
        return None
    left = (total / step - 1) * tokens / speed
    words = f"about {format_seconds(left)} left"
    whole = WholeRun(folder / stage.name / "train.log").seconds(stage.name, speed, left)
    return words + (f", {format_seconds(whole)} of the whole run" if whole is not None else "")


if __name__ == "__main__":
    print(next_steps(load(sys.argv[1])))
