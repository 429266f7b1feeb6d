"""The top of the page: the run in a sentence, its main numbers, and bars beside baselines."""

from markupsafe import Markup

from nanoeuler.config.stages import BY_SECTION, PRETRAIN, RECORD_STAGES, is_baseline, result_of
from nanoeuler.corpus.little_text import warning_for
from nanoeuler.evaluation.formats import (
    duration,
    enumeration,
    short_count,
    size,
    stage_colour,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report.charts import Bar, bars
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.evaluation.report.summary import summarise_gradients
from nanoeuler.evaluation.scores import plus_minus, score_lines
from nanoeuler.log import counted


def header(run: Run) -> Markup:
    made = run.first.provenance
    facts = [made.get("date", "")[:10]]
    if {"cores", "device"} <= made.keys():
        facts.append(f"{counted(made['cores'], 'core')}, {made['device']}")
    return render(
        "header.html",
        above="nanoeuler · report of a run",
        title=run.name,
        lead=sentence(run),
        below=" · ".join(filter(None, facts)),
    )


def sentence(run: Run) -> str:
    """The run in a sentence."""
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
        time = duration(pretrain.last["seconds"])
        text += f", trained from {start} on {amount} ({read} in {time})"
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
        checked=summarise_gradients(run.gradients),
    )


def comparisons(run: Run) -> list[Markup]:
    """Bars: each result beside what it has to beat. A model that has read no running text is shown
    only among the answers."""
    figures = []
    for line in score_lines(list(run.evaluations.values()), run.bigram):
        if not line.key:
            continue
        entries = [Bar(name, value, line.show(value)) for name, value in line.baselines.items()]
        for stage, (value, error) in zip(run.evaluations, line.measured, strict=True):
            if value is not None and (not is_baseline(stage) or line.key == "answers"):
                shown = f"{line.show(value)} {plus_minus(error)}".strip()
                entries.append(Bar(stage_name(stage), value, shown, stage_colour(stage), error))
        if line.key.startswith("bits_per_byte"):
            figures.append(bars(line.name, "less is better", entries))
        else:
            figures.append(bars(line.name, f"{line.remark}, more is better", entries, maximum=1.0))
    return figures
