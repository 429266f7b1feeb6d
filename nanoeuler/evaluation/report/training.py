"""How training went: loss, held-out measurements, learning rate and speed of every stage."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Run, Stage
from nanoeuler.evaluation.report.headline import stage_colour, stage_name
from nanoeuler.evaluation.report.markup import (
    Markup,
    count,
    decimals,
    duration,
    element,
    join,
    percent,
    scientific,
    section,
    short_count,
    table,
)

SOURCE_COLOURS = (0, 2, 3, 1, 4)


@dataclass(frozen=True)
class Axis:
    """What a curve is drawn over: a key of the metrics' lines, divided by `unit`."""

    key: str
    label: str
    unit: float = 1.0

    def of(self, line: dict[str, Any]) -> float:
        return line[self.key] / self.unit

    def title(self, subject: str) -> str:
        return f"{subject} over time" if self.key == "seconds" else subject


TOKENS, STEPS = Axis("tokens", "tokens"), Axis("step", "step")


def time_axis(stages: Iterable[Stage]) -> Axis:
    """Seconds, minutes or hours, whichever the longest of the stages asks for."""
    longest = max((stage.last.get("seconds", 0.0) for stage in stages), default=0.0)
    label, unit = next(
        (label, unit)
        for label, unit, least in (
            ("hours", 3600.0, 7200.0),
            ("minutes", 60.0, 300.0),
            ("seconds", 1.0, 0.0),
        )
        if longest >= least
    )
    return Axis("seconds", label, unit)


def training(run: Run) -> Markup:
    tuning = {name: stage for name, stage in run.stages.items() if name not in ("pretrain", "dpo")}
    return section(
        "Training",
        facts(run),
        pretraining_charts(run),
        tuning_charts(tuning),
        preference_charts(run),
    )


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
    """Loss and held-out quality over what was read and over the time that it took, then learning rate and speed."""
    stage = run.stages.get("pretrain")
    if stage is None or not stage.steps:
        return Markup()
    charts = []
    for x in (TOKENS, time_axis([stage])):
        charts.append(
            line_chart(
                x.title("Training loss"),
                "nats per token, next-token head",
                x.label,
                [loss_series("training", stage, x, 0)],
            )
        )
        charts.append(
            line_chart(
                x.title("Held-out text"), "bits per byte", x.label, held_out_series(run, stage, x)
            )
        )
    charts += speed_charts({"pretrain": stage}, TOKENS)
    return element("div", element("h3", "Pretraining"), element("div", join(charts), class_="grid"))


def held_out_series(run: Run, stage: Stage, x: Axis) -> list[Series]:
    """A line per source, and a dashed one for what a bigram model reaches on it."""
    held_out = []
    sources = list(
        dict.fromkeys(source for line in stage.validations for source in line["validation"])
    )
    for index, source in enumerate(sources):
        colour = SOURCE_COLOURS[index % len(SOURCE_COLOURS)]
        points = [
            (x.of(line), line["validation"][source])
            for line in stage.validations
            if source in line["validation"]
        ]
        held_out.append(
            Series(source, points, colour, shown=decimals(points[-1][1]), dots=len(points) <= 40)
        )
        if source in run.bigram:
            held_out.append(
                Series(
                    f"{source}, bigram",
                    colour=colour,
                    level=run.bigram[source],
                    shown=decimals(run.bigram[source]),
                )
            )
    return held_out


def tuning_charts(stages: dict[str, Stage]) -> Markup:
    """All fine-tuned stages in the same charts, to be compared."""
    stages = {name: stage for name, stage in stages.items() if stage.steps}
    if not stages:
        return Markup()
    charts = []
    for x in (STEPS, time_axis(stages.values())):
        training = [
            loss_series(stage_name(name), stage, x, stage_colour(name))
            for name, stage in stages.items()
        ]
        held_out = [
            validation_series(stage_name(name), stage, x, "loss", stage_colour(name))
            for name, stage in stages.items()
        ]
        charts.append(
            line_chart(x.title("Training loss"), "nats per response token", x.label, training)
        )
        charts.append(
            line_chart(
                x.title("Held-out instructions"), "nats per response token", x.label, held_out
            )
        )
    charts += speed_charts(stages, STEPS)
    return element("div", element("h3", "Fine-tuning"), element("div", join(charts), class_="grid"))


def preference_charts(run: Run) -> Markup:
    """How alignment went, on held-out pairs: loss, accuracy, margin and drift from the model that it began with."""
    stage = run.stages.get("dpo")
    if stage is None or not stage.steps:
        return Markup()
    colour = stage_colour("dpo")
    accuracy = [
        validation_series("held-out pairs", stage, STEPS, "accuracy", colour),
        Series("a coin", level=0.5, colour=0, shown="0.500"),
    ]
    rewards = [
        validation_series(label, stage, STEPS, key, place)
        for label, key, place in (
            ("chosen", "chosen_reward", 2),
            ("rejected", "rejected_reward", 4),
        )
    ]
    losses = [
        loss_series("training", stage, STEPS, 0),
        validation_series("held-out", stage, STEPS, "loss", colour),
    ]
    by_length = stage.settings.get("loss") == "simpo"
    reward = (
        "β · log-probability per token"
        if by_length
        else "β · log-probability against the reference"
    )
    charts = [
        line_chart("Loss", "of a pair, in nats", "step", losses),
        line_chart(
            "Accuracy", "share of pairs whose chosen reply has the higher reward", "step", accuracy
        ),
        line_chart("Rewards", reward, "step", rewards),
        line_chart(
            "Drift",
            "estimate of KL(reference ‖ policy), nats per token",
            "step",
            [validation_series("held-out", stage, STEPS, "drift", colour)],
            True,
        ),
        *speed_charts({"dpo": stage}, STEPS),
    ]
    return element("div", element("h3", "Preferences"), element("div", join(charts), class_="grid"))


def speed_charts(stages: dict[str, Stage], x: Axis) -> list[Markup]:
    rates = [
        series(name, stage, x, "learning_rate", peak_shower(stage))
        for name, stage in stages.items()
    ]
    speeds = [
        series(
            name,
            stage,
            x,
            "tokens_per_second",
            lambda speeds: short_count(statistics.median(speeds)),
        )
        for name, stage in stages.items()
    ]
    shares = [
        series(name, stage, x, "mfu", lambda shares: percent(statistics.median(shares)))
        for name, stage in stages.items()
    ]
    return [
        line_chart("Learning rate", "", x.label, rates, from_zero=True),
        line_chart("Throughput", "tokens per second, median", x.label, speeds, from_zero=True),
        line_chart("MFU", "share of the device's peak, median", x.label, shares, from_zero=True),
    ]


def peak_shower(stage: Stage) -> Callable[[list[float]], str]:
    """The peak is the configured one: a short stage logs few steps, and none near it."""
    return lambda rates: f"peak {scientific(stage.settings.get('learning_rate') or max(rates))}"


def loss_series(label: str, stage: Stage, x: Axis, colour: int) -> Series:
    return Series(
        label,
        [(x.of(line), line["loss"]) for line in stage.steps],
        colour,
        shown=decimals(stage.steps[-1]["loss"]),
    )


def validation_series(label: str, stage: Stage, x: Axis, key: str, colour: int) -> Series:
    """One quantity of a stage's validations."""
    points = [
        (x.of(line), line["validation"][key])
        for line in stage.validations
        if line["validation"].get(key) is not None
    ]
    return Series(
        label,
        points,
        colour,
        shown=decimals(points[-1][1]) if points else None,
        dots=len(points) <= 40,
    )


def series(
    name: str, stage: Stage, x: Axis, key: str, show: Callable[[list[float]], str]
) -> Series:
    """One quantity of a stage's steps; `show` says for the legend what its values come to."""
    points = [(x.of(line), line[key]) for line in stage.steps if line.get(key) is not None]
    return Series(
        stage_name(name),
        points,
        stage_colour(name),
        shown=show([value for _, value in points]) if points else None,
    )
