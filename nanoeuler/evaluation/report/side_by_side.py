"""Several runs on one page: what differs in their settings, their curves in the same charts, their scores and replies beside each other.

nanoeuler report results/small results/medium --output comparison.html
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config.settings import Configuration
from nanoeuler.config.stages import lasting
from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import STAGES, Run, Stage
from nanoeuler.evaluation.report.headline import stage_name
from nanoeuler.evaluation.report.markup import (
    Markup,
    count,
    decimals,
    duration,
    element,
    enumeration,
    join,
    percent,
    section,
    short_count,
    table,
)
from nanoeuler.evaluation.report.page import document
from nanoeuler.evaluation.report.results import sample_cards
from nanoeuler.evaluation.report.scores import score_rows
from nanoeuler.evaluation.report.training import TOKENS, loss_series, time_axis, validation_series

COLOURS = 5
"""In the palette: a sixth run has the first one's colour again."""


def side_by_side(runs: Mapping[str, Run]) -> str:
    """The page of `runs`, by the names that they go by."""
    header = element(
        "header",
        element("p", f"nanoeuler · {len(runs)} runs side by side", class_="muted"),
        element("h1", enumeration(list(runs))),
        element("p", caution(runs), class_="lead") if caution(runs) else "",
    )
    return document(
        " · ".join(runs),
        header,
        section("Runs", facts(runs)),
        section("Settings that differ", settings(runs)),
        section("Results", *(scores(runs, stage) for stage in stages_of(runs))),
        section("Training", *(curves(runs, stage) for stage in stages_of(runs))),
        section("Depth", depth(runs)),
        section("Samples", samples(runs)),
    )


def name_runs(folders: list[Path], runs: list[Run]) -> dict[str, Run]:
    """Each run by its name, or where two have one name by its folder."""
    names = [run.name for run in runs]
    return {
        run.name if names.count(run.name) == 1 else folder.as_posix(): run
        for folder, run in zip(folders, runs, strict=True)
    }


def stages_of(runs: Mapping[str, Run]) -> list[str]:
    found = {stage for run in runs.values() for stage in run.stages}
    return [stage for stage in STAGES if stage in found] + sorted(found - set(STAGES))


def caution(runs: Mapping[str, Run]) -> str:
    """What must not be compared: bits per byte of different texts."""
    corpora = {
        (run.corpus or {}).get("fingerprint") or (run.tokens or {}).get("corpus")
        for run in runs.values()
    }
    if None in corpora:
        return "Not every run's corpus is at hand: bits per byte compare only where the held-out text is the same."
    return (
        "The runs have different corpora, so their bits per byte are of different texts and do not compare."
        if len(corpora) > 1
        else ""
    )


# ---- tables


def facts(runs: Mapping[str, Run]) -> Markup:
    rows: list[list[Any]] = []
    for name, run in runs.items():
        first = next(iter(run.stages.values()))
        provenance = (
            first.header.get("provenance") or (first.evaluation or {}).get("provenance") or {}
        )
        parameters = first.header.get("parameters") or (first.evaluation or {}).get("parameters")
        rows.append(
            [
                name,
                short_count(parameters) if parameters else "–",
                ", ".join(map(described, run.stages.values())),
                provenance.get("device") or "–",
            ]
        )
        rows[-1].append(
            (provenance.get("commit") or "–")[:12]
            + (" + changes" if provenance.get("dirty") else "")
        )
    return table(["", "parameters", "stages", "device", "commit"], rows, numeric_from=9)


def described(stage: Stage) -> str:
    return stage_name(stage.name) + (
        " (not finished)" if stage.steps and not stage.finished else ""
    )


def settings(runs: Mapping[str, Run]) -> Markup:
    """The keys of the configurations whose values are not the same in all runs."""
    flat = {name: dict(leaves(what_counts(run.config))) for name, run in runs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    differing = [
        key
        for key in keys
        if len({repr(values.get(key)) for values in flat.values() if not is_off(key, values)}) > 1
    ]
    if unknown := [name for name, values in flat.items() if not values]:
        return element(
            "p",
            f"The configuration of {enumeration(unknown)} is not at hand: no workflow kept it in pipeline.json.",
            class_="note",
        )
    if not differing:
        return element("p", "None.", class_="note")
    return table(
        ["", *flat],
        [[key, *(shown(values.get(key)) for values in flat.values())] for key in differing],
        numeric_from=9,
    )


def is_off(key: str, values: Mapping[str, Any]) -> bool:
    """Is `key` a setting of a stage that is switched off here? Then it differs from nothing: that the stage is off says it all."""
    enabled = f"{key.partition('.')[0]}.enabled"
    return key != enabled and values.get(enabled) is False


def what_counts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration less name, sources file, and whatever cannot change a result. Of a stage that is switched off only that."""
    kept = lasting(config, Configuration)
    for key, stage in config.items():
        if isinstance(stage, Mapping) and "enabled" in stage:
            kept[key] = (kept[key] if stage["enabled"] else {}) | {"enabled": stage["enabled"]}
    return {key: value for key, value in kept.items() if key not in ("run", "sources")}


def leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """("sft.learning_rate", 0.0003), …"""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def shown(value: Any) -> str:
    if isinstance(value, Mapping):  # a task: its name, and what else is said of it
        return " ".join(
            str(each) if key == "name" else f"{key} {each}"
            for key, each in value.items()
            if each is not None
        )
    return (
        "–"
        if value is None
        else ", ".join(map(shown, value))
        if isinstance(value, list)
        else str(value)
    )


def scores(runs: Mapping[str, Run], stage: str) -> Markup:
    """A stage's scores by run; the bigram model's only where all runs have the same."""
    evaluations = [run.evaluations.get(stage, {}) for run in runs.values()]
    bigrams = [run.bigram for run in runs.values() if run.bigram]
    bigram = bigrams[0] if bigrams and all(one == bigrams[0] for one in bigrams) else {}
    rows = score_rows(evaluations, bigram)
    rows += training_rows([run.stages.get(stage, Stage(stage)) for run in runs.values()])
    return (
        element(
            "div",
            element("h3", stage_name(stage).capitalize()),
            table(["", *runs, "baseline"], rows),
        )
        if rows
        else Markup()
    )


def training_rows(stages: list[Stage]) -> list[list[Any]]:
    """What the scores cost."""
    shows: dict[str, Callable[[Stage], str | None]] = {
        "tokens read in training": lambda stage: (
            short_count(stage.last["tokens"]) if stage.last else None
        ),
        "training time": lambda stage: duration(stage.last["seconds"]) if stage.last else None,
        "tokens per second": lambda stage: (
            count(stage.tokens_per_second) if stage.tokens_per_second else None
        ),
        "MFU": lambda stage: percent(stage.mfu) if stage.mfu else None,
    }
    rows = [[title, *map(show, stages)] for title, show in shows.items()]
    return [[row[0], *(value or "–" for value in row[1:]), "–"] for row in rows if any(row[1:])]


# ---- curves


def curves(runs: Mapping[str, Run], stage: str) -> Markup:
    """The stage in the same charts for every run that has it; one alone is in its own report."""
    trained = {
        name: run.stages[stage]
        for name, run in runs.items()
        if stage in run.stages and run.stages[stage].steps
    }
    if len(trained) < 2:
        return Markup()
    colours = {name: index % COLOURS for index, name in enumerate(runs)}
    quantities = list(
        dict.fromkeys(
            key
            for one in trained.values()
            for line in one.validations
            for key in line["validation"]
        )
    )
    charts = []
    for x in (TOKENS, time_axis(trained.values())):
        losses = [loss_series(name, one, x, colours[name]) for name, one in trained.items()]
        charts.append(line_chart(x.title("Training loss"), "nats per token", x.label, losses))
        for key in quantities:
            lines = [
                validation_series(name, one, x, key, colours[name]) for name, one in trained.items()
            ]
            title, unit = (
                (f"Held-out text: {key}", "bits per byte")
                if stage == "pretrain"
                else (f"Held-out {key}", "")
            )
            charts.append(line_chart(x.title(title), unit, x.label, lines))
    speeds = [speed(name, one, colours[name]) for name, one in trained.items()]
    charts.append(
        line_chart("Throughput", "tokens per second, median", TOKENS.label, speeds, from_zero=True)
    )
    return element(
        "div",
        element("h3", stage_name(stage).capitalize()),
        element("div", join(charts), class_="grid"),
    )


def speed(name: str, stage: Stage, colour: int) -> Series:
    points = [
        (TOKENS.of(line), line["tokens_per_second"])
        for line in stage.steps
        if line.get("tokens_per_second") is not None
    ]
    return Series(
        name,
        points,
        colour,
        shown=short_count(statistics.median(y for _, y in points)) if points else None,
    )


def depth(runs: Mapping[str, Run]) -> Markup:
    """The first model of each run on its way through the layers, over the share of them that is passed: models of different depths compare."""
    measured = {}
    for index, (name, run) in enumerate(runs.items()):
        if trajectory := next(
            (one["trajectory"] for one in run.evaluations.values() if one.get("trajectory")), None
        ):
            measured[name] = (index % COLOURS, trajectory)
    charts = []
    for key, title, unit in (
        ("norm", "Length of the stream", "RMS norm of x"),
        ("relative_step", "Relative step", "‖h·f(x)‖ / ‖x‖"),
    ):
        lines = []
        for name, (colour, trajectory) in measured.items():
            halves = 2 * trajectory["layers"]
            points = [
                (100 * place / halves, stat["mean"])
                for place, stat in enumerate(trajectory[key], 0 if key == "norm" else 1)
                if stat
            ]
            lines.append(
                Series(
                    name,
                    points,
                    colour,
                    shown=decimals(points[-1][1]) if points else None,
                    dots=True,
                )
            )
        charts.append(
            line_chart(title, unit, "% of the half-steps passed", lines, logarithmic=True)
        )
    return element("div", join(charts), class_="grid") if any(charts) else Markup()


def samples(runs: Mapping[str, Run]) -> Markup:
    """What the last model of each run replies to the same prompts."""
    named = []
    for index, (name, run) in enumerate(runs.items()):
        stages = [stage for stage in run.evaluations if stage != "sft_scratch"] or list(
            run.evaluations
        )
        if stages:
            named.append(
                (f"{name}, {stage_name(stages[-1])}", index % COLOURS, run.evaluations[stages[-1]])
            )
    cards = sample_cards(named)
    return element("div", join(cards), class_="samples") if cards else Markup()
