"""`nanoeuler` without arguments: how far the runs of this folder are, and what to do next."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nanoeuler.shipped import find
from nanoeuler.version import __version__

if TYPE_CHECKING:
    from nanoeuler.planning.whereabouts import Whereabouts

RESULTS = Path("results")
SMALL_MODEL = "models/stories"
"""It is shipped, as are the configurations."""
SHOWN = 8
"""Runs that are listed; `nanoeuler runs` lists all."""


def greeting() -> str:
    """The runs in ./results, and the commands to go on with, as they must be typed here."""
    from nanoeuler.log import printable
    from nanoeuler.planning.whereabouts import whereabouts
    from nanoeuler.workflow.next_steps import command

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


def config(run: "Whereabouts") -> Path | None:
    """The configuration that a run was probably started with, if it is where one would be."""
    files = (run.folder / "config.yaml", Path("config", f"{run.name}.yaml"))
    return next((file for file in files if find(file).is_file()), None)


def opener() -> str:
    """The program that opens a page in a browser, with a space behind it; empty without one."""
    program = "open" if sys.platform == "darwin" else "xdg-open"
    return f"{program} " if shutil.which(program) else ""
