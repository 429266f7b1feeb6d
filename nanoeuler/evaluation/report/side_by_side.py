"""Several runs on one page: their settings, curves, scores and replies beside each other.

nanoeuler report results/small results/medium --output comparison.html
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nanoeuler.config.rules import lasting, leaves
from nanoeuler.config.settings import Configuration
from nanoeuler.config.stages import PRETRAIN, in_order, result_of
from nanoeuler.evaluation.formats import (
    decimals,
    duration,
    enumeration,
    joules,
    short_count,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Json, Run, Stage
from nanoeuler.evaluation.report.rendering import render, render_page
from nanoeuler.evaluation.report.results import sample_cards
from nanoeuler.evaluation.report.training import (
    TOKENS,
    loss_series,
    step_charts,
    time_axis,
    validation_series,
)
from nanoeuler.evaluation.scores import Line, Row, names_in, score_lines, score_rows
from nanoeuler.evaluation.verdicts import HEADER, verdict_rows
from nanoeuler.system.energy import ENERGIES

COLOURS = 5
"""In the palette: a sixth run has the first one's colour again."""


def side_by_side(runs: Mapping[str, Run], told: Mapping[str, Any] | None = None) -> str:
    """The page of `runs`, by the names that they go by, or of the experiment that is `told`, whose
    trials they are."""
    stages = in_order({stage for run in runs.values() for stage in run.stages})
    colours = {name: index % COLOURS for index, name in enumerate(runs)}
    header = render(
        "header.html",
        above="nanoeuler · an experiment" if told else f"nanoeuler · {len(runs)} runs side by side",
        title=Path(told["folder"]).name if told else enumeration(list(runs)),
        lead=caution(runs),
        below=None,
    )
    content = render(
        "side_by_side.html",
        names=list(runs),
        verdicts=[HEADER, *verdict_rows(told)] if told else [],
        hidden=told and len(runs) < len(told["arms"]),
        facts=[[name, *facts(run)] for name, run in runs.items()],
        unknown=[name for name, run in runs.items() if not run.config],
        settings=settings(runs),
        differences=differences(runs, stages),
        scores={stage: scores(runs, stage) for stage in stages},
        curves={stage: curves(runs, stage, colours) for stage in stages},
        depth=depth(runs, colours),
        samples=samples(runs, colours),
    )
    return render_page(" · ".join(runs), [header, content])


def name_runs(folders: list[Path], runs: list[Run]) -> dict[str, Run]:
    """Each run by its name, or where two have one name by its folder."""
    names = [run.name for run in runs]
    return {
        run.name if names.count(run.name) == 1 else folder.as_posix(): run
        for folder, run in zip(folders, runs, strict=True)
    }


def caution(runs: Mapping[str, Run]) -> str:
    """A warning where bits per byte do not compare, since the held-out texts differ."""
    corpora = {
        (run.corpus or {}).get("fingerprint") or (run.tokens or {}).get("corpus")
        for run in runs.values()
    }
    if None in corpora:
        return (
            "Not every run's corpus is at hand: "
            "bits per byte compare only where the held-out text is the same."
        )
    if len(corpora) > 1:
        return (
            "The runs have different corpora, "
            "so their bits per byte are of different texts and do not compare."
        )
    return ""


# ---- tables


def facts(run: Run) -> list[str]:
    """Parameters, stages, device and commit."""
    made = run.first.provenance
    unfinished = {name for name, stage in run.stages.items() if stage.steps and not stage.finished}
    stages = [
        stage_name(name) + (" (not finished)" if name in unfinished else "") for name in run.stages
    ]
    return [
        short_count(run.first.parameters) if run.first.parameters else "–",
        ", ".join(stages),
        made.get("device") or "–",
        (made.get("commit") or "–")[:12] + (" + changes" if made.get("dirty") else ""),
    ]


def settings(runs: Mapping[str, Run]) -> list[list[str]]:
    """The keys of the configurations whose values are not the same in all runs."""
    flat = [settings_of(run) for run in runs.values()]
    return [[key, *(shown(values.get(key)) for values in flat)] for key in differing(flat)]


def settings_of(run: Run) -> dict[str, Any]:
    """The settings that can change a run's results."""
    return dict(leaves(what_counts(run.config)))


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings whose values are not the same in all runs that have a configuration."""
    known = [each for each in settings if each]
    keys = dict.fromkeys(key for each in known for key in each)
    return [
        key
        for key in keys
        if len({repr(each.get(key)) for each in known if not is_off(key, each)}) > 1
    ]


def is_off(key: str, values: Mapping[str, Any]) -> bool:
    """Whether `key` belongs to a stage that is switched off: then it differs from nothing."""
    enabled = f"{key.partition('.')[0]}.enabled"
    return key != enabled and values.get(enabled) is False


def what_counts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration less its name, the sources file, and whatever cannot change a result; of a
    stage that is switched off only that it is."""
    kept = lasting(config, Configuration)
    for key, stage in config.items():
        if isinstance(stage, Mapping) and "enabled" in stage:
            kept[key] = (kept[key] if stage["enabled"] else {}) | {"enabled": stage["enabled"]}
    return {key: value for key, value in kept.items() if key not in ("run", "sources")}


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Mapping):  # a task: its name, then its other settings
        given = {key: each for key, each in value.items() if each is not None}
        return " ".join(
            str(each) if key == "name" else f"{key} {each}" for key, each in given.items()
        )
    return ", ".join(map(shown, value)) if isinstance(value, list) else str(value)


def scores(runs: Mapping[str, Run], stage: str) -> list[Row]:
    """A stage's scores by run; the bigram model's only where all runs have the same."""
    evaluations = [run.evaluations.get(stage, {}) for run in runs.values()]
    bigrams = [run.bigram for run in runs.values() if run.bigram]
    bigram = bigrams[0] if bigrams and all(one == bigrams[0] for one in bigrams) else {}
    stages = [run.stages.get(stage, Stage(stage)) for run in runs.values()]
    return score_rows(evaluations, bigram) + cost_rows(stages)


def differences(runs: Mapping[str, Run], stages: list[str]) -> list[Row]:
    """Differences of two runs' scores, second minus first; empty for more runs.

    The last column counts standard errors of the difference: √(a² + b²) for errors a and b of
    scores that are measured apart.
    """
    if len(runs) != 2:
        return []
    rows = []
    for stage in stages:
        for line in score_lines([run.evaluations.get(stage, {}) for run in runs.values()], {}):
            if not line.key or None in line.values:
                continue
            first, second = (value for value in line.values if value is not None)
            gap, error = second - first, math.hypot(*(error or 0 for error in line.errors))
            errors = f"{gap / error:+.1f}" if error else "–"
            told = ("−" if gap < 0 else "+") + line.show(abs(gap))
            title = f"{stage_name(stage)}: {line.name}"
            rows.append([title, line.show(first), line.show(second), told, errors])
    return rows


def cost_rows(stages: list[Stage]) -> list[Row]:
    """The cost of training, by run."""
    lines = (
        Line("tokens read in training", [each.last.get("tokens") for each in stages], short_count),
        Line("training time", [each.last.get("seconds") for each in stages], duration),
        *(
            Line(f"energy, {device}", [each.joules.get(kind) for each in stages], joules)
            for kind, device in ENERGIES.items()
        ),
        Line("tokens per second", [each.tokens_per_second for each in stages], with_commas),
        Line("MFU", [each.mfu for each in stages]),
    )
    return [line.row for line in lines if any(line.values)]


# ---- curves


def curves(runs: Mapping[str, Run], stage: str, colours: Mapping[str, int]) -> list[Markup]:
    """The stage's charts with a line per run; none for one run alone, whose report has them."""
    trained = {name: run.stages[stage] for name, run in runs.items() if stage in run.stages}
    trained = {name: one for name, one in trained.items() if one.steps}
    if len(trained) < 2:
        return []
    validations = [line for one in trained.values() for line in one.validations]
    charts = []
    for x in (TOKENS, time_axis(trained.values())):
        losses = [loss_series(name, one, x, colours[name]) for name, one in trained.items()]
        charts.append(line_chart(x.title("Training loss"), "nats per token", x.label, losses))
        for key in names_in(validations, "validation"):
            text = stage == PRETRAIN.name
            title, unit = ("Held-out text:", "bits per byte") if text else ("Held-out", "")
            lines = [
                validation_series(name, one, x, key, colours[name]) for name, one in trained.items()
            ]
            charts.append(line_chart(x.title(f"{title} {key}"), unit, x.label, lines))
    labelled = {name: (one, colours[name]) for name, one in trained.items()}
    return [chart for chart in (*charts, *step_charts(labelled, TOKENS)) if chart]


def depth(runs: Mapping[str, Run], colours: Mapping[str, int]) -> list[Markup]:
    """Trajectories of the first model of each run over the share of the half-steps that is passed,
    so that models of different depths compare."""
    trajectories = {name: list(run.evaluated("trajectory").values()) for name, run in runs.items()}
    charts = []
    for key, title, unit in (
        ("norm", "Length of the stream", "RMS norm of x"),
        ("relative_step", "Relative step", "‖h·f(x)‖ / ‖x‖"),
    ):
        lines = []
        for name, (trajectory, *_) in ((name, each) for name, each in trajectories.items() if each):
            halves = 2 * trajectory["layers"]
            stats = enumerate(trajectory[key], 0 if key == "norm" else 1)
            points = [(100 * step / halves, stat["mean"]) for step, stat in stats if stat]
            last = decimals(points[-1][1]) if points else None
            lines.append(Series(name, points, colours[name], shown=last, dots=True))
        x_label = "% of the half-steps passed"
        charts.append(line_chart(title, unit, x_label, lines, logarithmic=True))
    return [chart for chart in charts if chart]


def samples(
    runs: Mapping[str, Run], colours: Mapping[str, int]
) -> dict[str, dict[str, tuple[int, Json]]]:
    """Replies of each run's last model to the same prompts."""
    named = {}
    for name, run in runs.items():
        if stage := result_of(run.evaluations):
            named[f"{name}, {stage_name(stage)}"] = (colours[name], run.evaluations[stage])
    return sample_cards(named)
