"""The workflow's rules behind the page, as a graph, and the time that each took."""

from typing import Any

from markupsafe import Markup

from nanoeuler.evaluation.report.charts import Bar, bars
from nanoeuler.evaluation.report.formats import brief_duration, with_commas
from nanoeuler.evaluation.report.gather import STAGES, Run
from nanoeuler.evaluation.report.layers import Point, lay_out, without_shortcuts
from nanoeuler.evaluation.report.rendering import render

REPORT = "write_report"
BOX_WIDTH, BOX_HEIGHT, LAYER = 96, 58, 88
BEND_WIDTH, GAP, MARGIN = 0, 12, 4


def pipeline(run: Run) -> Markup:
    figures = [figure for figure in (graph(run), times(run)) if figure]
    if not figures:
        return Markup()
    return render("pipeline.html", figures=figures, total=sum(run.rule_seconds.values()))


def upstream(rules: dict[str, Any]) -> dict[str, list[str]]:
    """Rule → the rules that it needs, for the report and everything before it."""
    found: dict[str, list[str]] = {}

    def visit(rule: str) -> None:
        if rule not in found and rule in rules:
            needed = dict.fromkeys(rules[rule]["needs"])
            found[rule] = [other for other in needed if other in rules]
            for other in found[rule]:
                visit(other)

    visit(REPORT)
    return {rule: found[rule] for rule in rules if rule in found}


def graph(run: Run) -> Markup:
    """The directed graph of the rules; nothing for a run that no workflow made."""
    rules = (run.pipeline or {}).get("rules", {})
    needs = without_shortcuts(upstream(rules))
    if not needs:
        return Markup()
    layout = lay_out(needs, BOX_WIDTH, BEND_WIDTH, GAP)
    width = layout.width + 2 * MARGIN
    height = layout.layers * LAYER - (LAYER - BOX_HEIGHT) + 2 * MARGIN
    wide = max(width, 4 * (BOX_WIDTH + GAP))  # a narrow graph is not blown up
    return render(
        "graph.html",
        view=f"{(width - wide) / 2 - MARGIN:.0f} {-MARGIN} {wide:.0f} {height:.0f}",
        edges=[edge(points) for points in layout.edges.values()],
        boxes=[
            box(rule, point, rules[rule]["jobs"], run.rule_seconds.get(rule))
            for rule, point in layout.nodes.items()
        ],
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
    )


def box(rule: str, point: Point, jobs: int, seconds: float | None) -> dict[str, Any]:
    """A rule: its name over two lines, then jobs × time."""
    x, layer = point
    kind, time = "made", "this page"
    if rule != REPORT:
        kind = "made" if seconds is not None else "earlier"
        time = f"{with_commas(jobs)} × · " if jobs > 1 else ""
        time += "earlier" if seconds is None else brief_duration(seconds)
    if rule in STAGES:
        kind = "training"
    first, _, second = rule.partition("_")
    lines = [first, second, time] if second else [first, time]
    top = layer * LAYER
    baseline = top + BOX_HEIGHT / 2 - 17 * (len(lines) - 1) / 2 + 4.5
    texts = [(baseline + 17 * number, line) for number, line in enumerate(lines)]
    return {"kind": kind, "x": x, "left": x - BOX_WIDTH / 2, "top": top, "texts": texts}


def edge(points: list[Point]) -> str:
    """A path from the lower side of the first box through the bends to the upper side of the
    last."""
    (x, layer), *further = points
    y = layer * LAYER + BOX_HEIGHT
    commands = [f"M{x:.1f},{y}"]
    for number, (next_x, next_layer) in enumerate(further, 1):
        top = next_layer * LAYER
        middle = (y + top) / 2
        commands.append(f"C{x:.1f},{middle} {next_x:.1f},{middle} {next_x:.1f},{top}")
        x, y = next_x, top
        if number < len(further):
            y += BOX_HEIGHT
            commands.append(f"V{y}")
    return " ".join(commands)


def times(run: Run) -> Markup:
    """The rules by their time, longest first."""
    entries = []
    for rule, seconds in sorted(run.rule_seconds.items(), key=lambda item: -item[1]):
        if rule == REPORT:
            continue
        attempts = len(run.times[rule])
        jobs = len({attempt["job"] for attempt in run.times[rule]})
        label = rule
        if jobs > 1:
            label += f" ({with_commas(jobs)} jobs)"
        if attempts > jobs:
            label += f", {with_commas(attempts)} attempts"
        colour = 0 if rule in STAGES else None
        entries.append(Bar(label, seconds, brief_duration(seconds), colour))
    return bars("Time per rule", "training in colour", entries)
