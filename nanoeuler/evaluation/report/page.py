"""The page: its top, and sections in order, in one HTML file that needs no other.

nanoeuler report results/demo       writes results/demo/report.html
nanoeuler watch results/demo        then open results/demo/watch.html in a browser
"""

import time
from pathlib import Path

from markupsafe import Markup

from nanoeuler import log
from nanoeuler.browser import packing
from nanoeuler.config import RESOLVED
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import BY_NAME, BY_SECTION, PRETRAIN, RECORD_STAGES, result_of
from nanoeuler.corpus.sources.own_text import warning_for
from nanoeuler.errors import UserError
from nanoeuler.evaluation.formats import (
    decimals,
    duration,
    enumeration,
    short_count,
    size,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report import background, depth, results, training
from nanoeuler.evaluation.report.gather import Run, entitled, gather, is_run, kept_configuration
from nanoeuler.evaluation.report.playable import Playable, play, playable
from nanoeuler.evaluation.report.rendering import own_script, render, render_page
from nanoeuler.log import counted
from nanoeuler.storage.files import atomic_write


def page(run: Run, reload: int | None = None, with_model: bool = True) -> str:
    """The report of `run`. With `reload`, that of a run which is still training: a page that reads
    itself again after so many seconds, and holds no model."""
    found = playable(run) if with_model and not reload else None
    model = found if isinstance(found, Playable) else None
    run = entitled(run)
    sections = (
        lambda run: header(run, found if isinstance(found, str) else None),
        *([lambda run: play(run, model)] if model else []),
        tiles,
        results.scores,
        results.samples,
        results.reading,
        results.questions,
        training.training,
        results.heads,
        depth.depth,
        background.data,
        background.gradients,
        background.licences,
        background.planned,
        background.pipeline,
        background.provenance,
    )
    drawn = [section(run) for section in sections]
    shared, own = map(packing.script, packing.SCRIPTS), map(own_script, ("in_page", "play"))
    return render_page(run.name, drawn, [*shared, *own] if model else [], reload)


def header(run: Run, no_model: str | None) -> Markup:
    """The top of the page. `no_model`: why it does not have the model."""
    made = run.first.provenance
    facts = [made.get("date", "")[:10]]
    if {"cores", "device"} <= made.keys():
        facts.append(f"{counted(made['cores'], 'core')}, {made['device']}")
    return render(
        "header.html",
        above="nanoeuler · report of a run",
        title=run.name,
        lead=sentence(run) + (f" The model is not in this page: {no_model}." if no_model else ""),
        below=" · ".join(filter(None, facts)),
    )


def sentence(run: Run) -> str:
    text = "A language model"
    if run.first.parameters:
        text += f" of {short_count(run.first.parameters)} parameters"
    trained = {name: stage for name, stage in run.stages.items() if stage.last}
    if pretrain := trained.get(PRETRAIN.name):
        given = pretrain.settings.get("init_from")
        start = "the weights of another run" if given else "random weights"
        amount = "text"
        if total := sum(source["train"]["bytes"] for source in run.sources.values()):
            amount = f"{size(total)} of text of {enumeration(list(run.sources))}"
        read = f"{short_count(pretrain.last['tokens'])} tokens read"
        read += f" in {duration(pretrain.last['seconds'])}"
        best = pretrain.tokens_of_model
        if best and best < pretrain.last["tokens"]:
            read += f"; the model after {short_count(best)} was the best on held-out text"
        text += f", trained from {start} on {amount} ({read})"
    for name, declared in BY_SECTION.items():
        if (stage := trained.get(name)) and (records := declared.records):
            number = stage.header.get(f"{records.unit}s")
            material = f"{with_commas(number)} {records.noun}" if number else records.noun
            text += f", then {declared.verb} {material} in {duration(stage.last['seconds'])}"
    unfinished = [
        stage_name(name) for name, stage in run.stages.items() if stage.steps and not stage.finished
    ]
    if unfinished:
        text += f". Training is not finished yet: {', '.join(unfinished)}"
    if again := [stage_name(name) for name, stage in run.stages.items() if stage.again]:
        text += ". Being made again (until then, the model before is used, and its scores are "
        text += f"shown): {', '.join(again)}"
    goes_on = pretrain.settings.get("init_from") if pretrain else None
    little = warning_for(run.sources, goes_on)
    return f"{text}." + (f" {little}." if little else "")


def tiles(run: Run) -> Markup:
    """The numbers that one looks for first."""
    evaluations = run.evaluations
    paired = next((one for one in run.stages.values() if "held_out_pairs" in one.header), None)
    base = evaluations.get(PRETRAIN.name) or next(iter(evaluations.values()), {})
    tuned = result_of(stage.name for stage in RECORD_STAGES.values() if stage.name in evaluations)
    return render(
        "tiles.html",
        held_out=base.get("held_out") or {},
        bigram=run.bigram,
        answers=evaluations.get(tuned, {}).get("answers"),
        accuracy=(paired.handed_on or {}).get("accuracy") if paired else None,
        pairs=paired.header["held_out_pairs"] if paired else None,
        seconds={name: stage.last["seconds"] for name, stage in run.stages.items() if stage.last},
        checked=run.checked,
    )


def watch(folder: Path, output: Path, seconds: int) -> None:
    """Write the page every `seconds` until every stage of the run is trained and evaluated.

    Waits for the first measurement of a run that has just begun. Raises `UserError` for a folder
    that is not there, and for damaged files.
    """
    told, failed = None, False
    while True:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; give that of a run, such as results/demo")
        if not (is_run(folder) or any((folder / name).exists() for name in (RESOLVED, *BY_NAME))):
            raise UserError(f"{folder}: not the folder of a run; give one, such as results/demo")
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
        parts.append(stage.state + ("" if stage.finished else loss))
    return "; ".join(parts)
