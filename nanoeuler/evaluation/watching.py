"""The report of a run while it trains: a page that is written, and reads itself, at intervals.

nanoeuler watch results/demo        then open results/demo/watch.html in a browser
"""

import time
from pathlib import Path

from nanoeuler import log
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.errors import UserError
from nanoeuler.evaluation.formats import decimals
from nanoeuler.evaluation.report.gather import Run, gather, kept_configuration
from nanoeuler.evaluation.report.page import page
from nanoeuler.evaluation.runs import is_run, state
from nanoeuler.model.files import CONFIG
from nanoeuler.storage.files import atomic_write


def watch(folder: Path, output: Path, seconds: int) -> None:
    """Write the page every `seconds` until every stage of the run is trained and evaluated.

    Waits for the first measurement of a run that has just begun. Raises `UserError` for a folder
    that is not there, and for damaged files.
    """
    told, failed = None, False
    while True:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; give that of a run, such as results/demo")
        if (folder / CONFIG).is_file() or not any(folder.iterdir()):
            raise UserError(f"{folder}: holds no run; give the folder of one, such as results/demo")
        try:
            run = gather(kept_configuration(folder), folder) if is_run(folder) else None
        except UserError:
            if failed:
                raise
            failed = True  # a stage may be replacing a file: what is damaged still is next time
            time.sleep(seconds)
            continue
        failed = False
        done = run is not None and is_done(run)
        if run:
            with atomic_write(output) as file:
                file.write(page(run, None if done else seconds))
        now = describe(run) if run else "waiting for the first measurement"
        if now != told:
            log.line("watch", now)
            told = now
        if done:
            log.line("report", str(output))
            return
        time.sleep(seconds)


def is_done(run: Run) -> bool:
    """Whether all stages that the configuration asks for are trained and evaluated; of a run by
    hand, all that were begun are trained."""
    if not {"data_dir", "results_dir", "corpus", "sources", *BY_SECTION} <= run.config.keys():
        return all(stage.finished for stage in run.stages.values() if stage.header)
    stages = [run.stages.get(name) for name in Paths(run.config).stages]
    return all(stage and stage.finished and stage.evaluation for stage in stages)


def describe(run: Run) -> str:
    """How far each stage is, and its last loss."""
    parts = []
    for stage in run.stages.values():
        loss = f", loss {decimals(stage.steps[-1]['loss'])}" if stage.steps else ""
        parts.append(state(stage) + ("" if stage.finished else loss))
    return "; ".join(parts)
