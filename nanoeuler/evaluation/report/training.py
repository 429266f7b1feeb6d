"""How training went: loss, held-out measurements, learning rate and speed of every stage."""

import statistics
from collections.abc import Callable

from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Run, Stage
from nanoeuler.evaluation.report.headline import stage_colour, stage_name
from nanoeuler.evaluation.report.markup import Markup, count, decimals, duration, element, join, percent, scientific, section, short_count, table

SOURCE_COLOURS = (0, 2, 3, 1, 4)


def training(run: Run) -> Markup:
    tuning = {name: stage for name, stage in run.stages.items() if name != "pretrain"}
    return section("Training", facts(run), pretraining_charts(run), tuning_charts(tuning))


def facts(run: Run) -> Markup:
    rows = []
    for name, stage in run.stages.items():
        if not stage.last:
            continue
        rate = stage.tokens_per_second
        rows.append(
            [
                stage_name(name),
                count(stage.last["step"]),
                short_count(stage.last["tokens"]),
                duration(stage.last["seconds"]),
                count(rate) if rate else "–",
                percent(stage.mfu) if stage.mfu else "n/a",
            ]
        )
    return table(["", "steps", "tokens", "time", "tokens/s", "MFU"], rows)


def pretraining_charts(run: Run) -> Markup:
    stage = run.stages.get("pretrain")
    if stage is None or not stage.steps:
        return Markup()
    sources = list(dict.fromkeys(source for line in stage.validations for source in line["validation"]))
    held_out = []
    for index, source in enumerate(sources):
        colour = SOURCE_COLOURS[index % len(SOURCE_COLOURS)]
        points = [(line["tokens"], line["validation"][source]) for line in stage.validations if source in line["validation"]]
        held_out.append(Series(source, points, colour, shown=decimals(points[-1][1]), dots=len(points) <= 40))
        if source in run.bigram:
            held_out.append(Series(f"{source}, bigram", colour=colour, level=run.bigram[source], shown=decimals(run.bigram[source])))
    stages = {"pretrain": stage}
    charts = [
        line_chart("Training loss", "nats per token, next-token head", "tokens", [loss_series("training", stage, "tokens", 0)]),
        line_chart("Held-out text", "bits per byte", "tokens", held_out),
        *speed_charts(stages, "tokens"),
    ]
    return element("div", element("h3", "Pretraining"), element("div", join(charts), class_="grid"))


def tuning_charts(stages: dict[str, Stage]) -> Markup:
    """All fine-tuned stages in the same charts, to be compared."""
    stages = {name: stage for name, stage in stages.items() if stage.steps}
    if not stages:
        return Markup()
    training = [loss_series(stage_name(name), stage, "step", stage_colour(name)) for name, stage in stages.items()]
    held_out = []
    for name, stage in stages.items():
        points = [(line["step"], line["validation"]["loss"]) for line in stage.validations if "loss" in line["validation"]]
        held_out.append(Series(stage_name(name), points, stage_colour(name), shown=decimals(points[-1][1]) if points else None, dots=len(points) <= 40))
    charts = [
        line_chart("Training loss", "nats per response token", "step", training),
        line_chart("Held-out instructions", "nats per response token", "step", held_out),
        *speed_charts(stages, "step"),
    ]
    return element("div", element("h3", "Fine-tuning"), element("div", join(charts), class_="grid"))


def speed_charts(stages: dict[str, Stage], x: str) -> list[Markup]:
    rates = [series(name, stage, x, "learning_rate", lambda rates: f"peak {scientific(max(rates))}") for name, stage in stages.items()]
    speeds = [series(name, stage, x, "tokens_per_second", lambda speeds: short_count(statistics.median(speeds))) for name, stage in stages.items()]
    label = "tokens" if x == "tokens" else "step"
    return [
        line_chart("Learning rate", "", label, rates, from_zero=True),
        line_chart("Throughput", "tokens per second, median", label, speeds, from_zero=True),
    ]


def loss_series(label: str, stage: Stage, x: str, colour: int) -> Series:
    return Series(label, [(line[x], line["loss"]) for line in stage.steps], colour, shown=decimals(stage.steps[-1]["loss"]))


def series(name: str, stage: Stage, x: str, key: str, show: Callable[[list[float]], str]) -> Series:
    """One quantity of a stage's steps; `show` says for the legend what its values come to."""
    points = [(line[x], line[key]) for line in stage.steps if line.get(key) is not None]
    return Series(stage_name(name), points, stage_colour(name), shown=show([value for _, value in points]) if points else None)
