"""The top of the page: the run in a sentence, its main numbers, and bars beside baselines."""

from markupsafe import Markup

from nanoeuler.corpus.little_text import warning_for
from nanoeuler.evaluation.comparison import names_in
from nanoeuler.evaluation.report.charts import Bar, bars
from nanoeuler.evaluation.report.formats import (
    decimals,
    duration,
    enumeration,
    percent,
    plus_minus,
    short_count,
    size,
    stage_colour,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.evaluation.report.summary import summarise_gradients
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
    if pretrain := trained.get("pretrain"):
        given = pretrain.settings.get("init_from")
        start = "the weights of another run" if given else "random weights"
        amount = "text"
        if total := sum(source["train"]["bytes"] for source in run.sources.values()):
            amount = f"{size(total)} of text of {enumeration(list(run.sources))}"
        read = f"{short_count(pretrain.last['tokens'])} tokens read"
        time = duration(pretrain.last["seconds"])
        text += f", trained from {start} on {amount} ({read} in {time})"
    for name, verb, key, noun in (
        ("sft", "fine-tuned on", "records", "instructions"),
        ("dpo", "aligned with", "pairs", "preference pairs"),
    ):
        if stage := trained.get(name):
            number = stage.header.get(key)
            material = f"{with_commas(number)} {noun}" if number else noun
            text += f", then {verb} {material} in {duration(stage.last['seconds'])}"
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
    evaluations, dpo = run.evaluations, run.stages.get("dpo")
    base = evaluations.get("pretrain") or next(iter(evaluations.values()), {})
    tuned = evaluations.get("dpo") or evaluations.get("sft") or {}
    return render(
        "tiles.html",
        held_out=base.get("held_out") or {},
        bigram=run.bigram,
        answers=tuned.get("answers"),
        accuracy=(dpo.handed_on or {}).get("accuracy") if dpo else None,
        pairs=dpo.header.get("held_out_pairs") if dpo else None,
        seconds={name: stage.last["seconds"] for name, stage in run.stages.items() if stage.last},
        checked=summarise_gradients(run.gradients),
    )


def comparisons(run: Run) -> list[Markup]:
    """Bars: each result beside what it has to beat."""
    evaluations = list(run.evaluations.values())
    figures = [bits_figure(run, source) for source in names_in(evaluations, "held_out")]
    figures += [answers_figure(run)]
    figures += [task_figure(run, task) for task in names_in(evaluations, "tasks")]
    return [figure for figure in figures if figure]


def bits_figure(run: Run, source: str) -> Markup:
    entries = []
    if source in run.bigram:
        entries.append(Bar("bigram model", run.bigram[source], decimals(run.bigram[source])))
    for name, evaluation in run.readers.items():
        if source in (evaluation.get("held_out") or {}):
            value = evaluation["held_out"][source]["bits_per_byte"]
            entries.append(Bar(stage_name(name), value, decimals(value), stage_colour(name)))
    return bars(f"Held-out text: {source}", "bits per byte, less is better", entries)


def task_figure(run: Run, task: str) -> Markup:
    """A task's score by stage, beside what picking at random gets."""
    tasks = {name: evaluation.get("tasks") or {} for name, evaluation in run.readers.items()}
    scores = {name: each[task] for name, each in tasks.items() if task in each}
    if not scores:
        return Markup()
    first = next(iter(scores.values()))
    entries = [Bar("at random", first["baseline"], percent(first["baseline"]))]
    entries += [score_bar(name, score) for name, score in scores.items()]
    note = f"{first['metric']} of {with_commas(first['items'])}, more is better"
    return bars(task, note, entries, maximum=1.0)


def answers_figure(run: Run) -> Markup:
    scores = run.evaluated("answers")
    if not scores:
        return Markup()
    last = list(scores.values())[-1]
    baselines = {
        "always the commonest answer": last["commonest_answer"],
        "commonest answer to each kind": last["commonest_answer_of_kind"],
    }
    entries = [
        Bar(label, baseline["score"], percent(baseline["score"]))
        for label, baseline in baselines.items()
        if baseline
    ]
    entries += [score_bar(name, score) for name, score in scores.items()]
    note = f"share of {with_commas(last['questions'])} answered exactly, more is better"
    return bars("Held-out questions", note, entries, maximum=1.0)


def score_bar(stage: str, score: dict[str, float]) -> Bar:
    label, shown = stage_name(stage), plus_minus(score)
    return Bar(label, score["score"], shown, stage_colour(stage), score["standard_error"])
