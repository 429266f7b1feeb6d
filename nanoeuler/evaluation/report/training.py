"""Charts of training: loss, held-out measurements, rate, gradients and speed of every stage."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nanoeuler.config.stages import BY_SECTION, PRETRAIN, RL
from nanoeuler.evaluation.formats import (
    decimals,
    duration,
    energy,
    percent,
    scientific,
    short_count,
    stage_colour,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Run, Stage
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.evaluation.scores import names_in

SOURCE_COLOURS = (0, 2, 3, 1, 4)
FACTS = ("steps", "tokens", "time", "tokens/s", "MFU", "energy")
MOST_DOTS = 40
"""A line of more points has no dots on it."""


@dataclass(frozen=True)
class Axis:
    """The x axis of a curve: a key of the metrics' lines, divided by `unit`."""

    key: str
    label: str
    unit: float = 1.0

    def points(
        self, lines: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], float | None]
    ) -> list[tuple[float, float]]:
        """The points (x, value) of the lines in which `read` finds a value."""
        values = ((line[self.key] / self.unit, read(line)) for line in lines)
        return [(x, y) for x, y in values if y is not None]

    def title(self, subject: str) -> str:
        return f"{subject} over time" if self.key == "seconds" else subject


TOKENS = Axis("tokens", "tokens")
STEPS = Axis("step", "step")


def time_axis(stages: Iterable[Stage]) -> Axis:
    """Seconds, minutes or hours, by the longest of the stages."""
    longest = max((stage.last.get("seconds", 0.0) for stage in stages), default=0.0)
    if longest >= 7200:
        return Axis("seconds", "hours", 3600)
    if longest >= 300:
        return Axis("seconds", "minutes", 60)
    return Axis("seconds", "seconds")


def training(run: Run) -> Markup:
    steps = {name: stage for name, stage in run.stages.items() if stage.steps}
    pretrain, rewarded = (steps.pop(stage.name, None) for stage in (PRETRAIN, RL))
    paired = [
        steps.pop(name) for name, stage in BY_SECTION.items() if name in steps and stage.pairs
    ]
    charts = {
        "Pretraining": pretraining_charts(run, pretrain) if pretrain else [],
        "Fine-tuning": tuning_charts(steps) if steps else [],
        "Preferences": [chart for stage in paired for chart in preference_charts(stage)],
        "Rewards": reward_charts(rewarded) if rewarded else [],
    }
    rows = [[stage_name(name), *facts(stage)] for name, stage in run.stages.items() if stage.last]
    groups = {title: [chart for chart in drawn if chart] for title, drawn in charts.items()}
    if not rows:
        return Markup()
    return render("training.html", columns=["", *FACTS], rows=rows, groups=groups)


def facts(stage: Stage) -> list[str]:
    rate, mfu = stage.tokens_per_second, stage.mfu
    skipped = f" ({stage.skipped_steps:,} left out)" if stage.skipped_steps else ""
    return [
        with_commas(stage.last["step"]) + skipped,
        short_count(stage.last["tokens"]),
        duration(stage.last["seconds"]),
        with_commas(rate) if rate else "–",
        percent(mfu) if mfu else "n/a",
        energy(stage.joules),
    ]


def pretraining_charts(run: Run, stage: Stage) -> list[Markup]:
    """Loss and held-out quality over tokens and over time, then what each step logs."""
    charts = []
    for x in (TOKENS, time_axis([stage])):
        loss = [loss_series("training", stage, x, 0)]
        title, unit = x.title("Training loss"), "nats per token, next-token head"
        charts.append(line_chart(title, unit, x.label, loss))
        held_out = held_out_series(run, stage, x)
        charts.append(line_chart(x.title("Held-out text"), "bits per byte", x.label, held_out))
    return charts + step_charts(by_name({stage.name: stage}), TOKENS)


def held_out_series(run: Run, stage: Stage, x: Axis) -> list[Series]:
    """A line per source, and a dashed one for a bigram model's score on it."""
    lines = []
    for index, source in enumerate(names_in(stage.validations, "validation")):
        colour = SOURCE_COLOURS[index % len(SOURCE_COLOURS)]
        lines.append(validation_series(source, stage, x, source, colour))
        if source in run.bigram:
            level = run.bigram[source]
            label, shown = f"{source}, bigram", decimals(level)
            lines.append(Series(label, colour=colour, level=level, shown=shown))
    return lines


def tuning_charts(stages: dict[str, Stage]) -> list[Markup]:
    """All fine-tuned stages in the same charts, to be compared."""
    charts = []
    unit = "nats per response token"
    for x in (STEPS, time_axis(stages.values())):
        training, held_out = [], []
        for name, stage in stages.items():
            label, colour = stage_name(name), stage_colour(name)
            training.append(loss_series(label, stage, x, colour))
            held_out.append(validation_series(label, stage, x, "loss", colour))
        charts.append(line_chart(x.title("Training loss"), unit, x.label, training))
        charts.append(line_chart(x.title("Held-out instructions"), unit, x.label, held_out))
    return charts + step_charts(by_name(stages), STEPS)


def preference_charts(stage: Stage) -> list[Markup]:
    """Held-out pairs during alignment: loss, accuracy, rewards and drift from the first model."""

    def held_out(label: str, key: str, colour: int) -> Series:
        return validation_series(label, stage, STEPS, key, colour)

    colour = stage_colour(stage.name)
    losses = [loss_series("training", stage, STEPS, 0), held_out("held-out", "loss", colour)]
    accuracy = [
        held_out("held-out pairs", "accuracy", colour),
        Series("a coin", level=0.5, colour=0, shown="0.500"),
    ]
    rewards = [held_out("chosen", "chosen_reward", 2), held_out("rejected", "rejected_reward", 4)]
    drift = [held_out("held-out", "drift", colour)]
    by_length = stage.settings.get("loss") == "simpo"
    measure = "per token" if by_length else "against the reference"
    kl = "estimate of KL(reference ‖ policy), nats per token"
    ranked = "share of pairs whose chosen reply has the higher reward"
    return [
        line_chart("Loss", "of a pair, in nats", "step", losses),
        line_chart("Accuracy", ranked, "step", accuracy),
        line_chart("Rewards", f"β · log-probability {measure}", "step", rewards),
        line_chart("Drift", kl, "step", drift, from_zero=True),
        *step_charts(by_name({stage.name: stage}), STEPS),
    ]


def reward_charts(stage: Stage) -> list[Markup]:
    """What sampled and held-out replies earned, and how a collapse would show."""
    colour = stage_colour(stage.name)

    def sampled(label: str, key: str, show: Callable[[float], str], colour: int = 0) -> Series:
        return median_series(label, stage, STEPS, key, show, colour)

    def held_out(key: str) -> Series:
        return validation_series("held-out, greedy", stage, STEPS, key, colour)

    rewards = [sampled("sampled", "reward", decimals), held_out("reward")]
    lengths = [sampled("sampled", "reply_tokens", decimals), held_out("reply_tokens")]
    decided = [sampled("all right", "all_right", percent, 2)]
    decided += [sampled("all wrong", "all_wrong", percent, 4)]
    entropy, kl = (sampled("sampled", key, decimals, colour) for key in ("entropy", "kl"))
    ratio = sampled("largest", "ratio", decimals, colour)
    return [
        line_chart("Reward", "mean of replies", "step", rewards),
        line_chart("Entropy", "nats per token", "step", [entropy], from_zero=True),
        line_chart("Length of replies", "tokens, mean", "step", lengths, from_zero=True),
        line_chart("Decided problems", "share, of equal replies", "step", decided, from_zero=True),
        line_chart("Drift", "KL(policy ‖ parent), nats per reply", "step", [kl]),
        line_chart("Importance", "largest ratio of a token", "step", [ratio]),
        *step_charts(by_name({stage.name: stage}), STEPS),
    ]


def by_name(stages: Mapping[str, Stage]) -> dict[str, tuple[Stage, int]]:
    """Each stage by the name that people read, with its colour."""
    return {stage_name(name): (stage, stage_colour(name)) for name, stage in stages.items()}


def step_charts(curves: Mapping[str, tuple[Stage, int]], x: Axis) -> list[Markup]:
    """Metrics of each step beside the loss, a line for each label → (stage, colour)."""
    rates, norms, speeds, shares = [], [], [], []
    for label, (stage, colour) in curves.items():
        rates.append(rate_series(label, stage, x, colour))
        norms.append(median_series(label, stage, x, "gradient_norm", decimals, colour))
        speeds.append(median_series(label, stage, x, "tokens_per_second", short_count, colour))
        shares.append(median_series(label, stage, x, "mfu", percent, colour))
    speed, share = "tokens per second, median", "share of the device's peak, median"
    return [
        line_chart("Learning rate", "", x.label, rates, from_zero=True),
        line_chart("Gradient norm", "before clipping, median", x.label, norms, logarithmic=True),
        line_chart("Throughput", speed, x.label, speeds, from_zero=True),
        line_chart("MFU", share, x.label, shares, from_zero=True),
    ]


def loss_series(label: str, stage: Stage, x: Axis, colour: int) -> Series:
    points = x.points(stage.steps, lambda line: line["loss"])
    return Series(label, points, colour, shown=decimals(stage.steps[-1]["loss"]))


def validation_series(label: str, stage: Stage, x: Axis, key: str, colour: int) -> Series:
    """One quantity of a stage's validations."""
    points = x.points(stage.validations, lambda line: line["validation"].get(key))
    shown = decimals(points[-1][1]) if points else None
    return Series(label, points, colour, shown=shown, dots=len(points) <= MOST_DOTS)


def rate_series(label: str, stage: Stage, x: Axis, colour: int) -> Series:
    """The learning rate. A short stage logs few steps, and none at the peak that is configured."""
    points = x.points(stage.steps, lambda line: line.get("learning_rate"))
    peak = stage.settings.get("learning_rate") or max((rate for _, rate in points), default=None)
    return Series(label, points, colour, shown=f"peak {scientific(peak)}")


def median_series(
    label: str, stage: Stage, x: Axis, key: str, show: Callable[[float], str], colour: int
) -> Series:
    """One quantity of a stage's steps, and its median."""
    points = x.points(stage.steps, lambda line: line.get(key))
    shown = show(statistics.median(y for _, y in points)) if points else None
    return Series(label, points, colour, shown=shown)
