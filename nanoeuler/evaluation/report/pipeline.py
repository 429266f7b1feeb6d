"""What ran: the rules that led to this page, drawn as the graph that they are, with the time that each took."""

from typing import Any

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.layers import lay_out, without_shortcuts
from nanoeuler.evaluation.report.markup import (
    Bar,
    Markup,
    bars,
    brief_duration,
    count,
    duration,
    element,
    escape,
    join,
    section,
)

REPORT = "write_report"
BOX_WIDTH, BOX_HEIGHT, LAYER = 96, 58, 88
BEND_WIDTH, GAP, MARGIN = 0, 12, 4
TRAINING = ("pretrain", "sft", "dpo", "sft_scratch")


def pipeline(run: Run) -> Markup:
    seconds = {
        rule: sum(attempt["seconds"] for attempt in attempts)
        for rule, attempts in run.times.items()
    }
    total = sum(seconds.values())
    note = (
        "Every rule of the workflow behind this page. A time is that of the rule's commands, all jobs and attempts together"
        + (f", {duration(total)} in all" if total else "")
        + "; jobs may have run beside each other. Dashed: what an earlier run had already made."
    )
    figures = [graph(run, seconds), times(run, seconds)]
    return (
        section(
            "Pipeline",
            element("p", note, class_="note"),
            element("div", join(figures), class_="grid"),
        )
        if any(figures)
        else Markup()
    )


def upstream(rules: dict[str, Any]) -> dict[str, list[str]]:
    """Rule → rules that it needs, of the report and everything before it."""
    found: dict[str, list[str]] = {}

    def visit(rule: str) -> None:
        if rule not in found and rule in rules:
            found[rule] = [other for other in rules[rule]["needs"] if other in rules]
            for other in found[rule]:
                visit(other)

    visit(REPORT)
    return {rule: found[rule] for rule in rules if rule in found}


def graph(run: Run, seconds: dict[str, float]) -> Markup:
    """The directed graph of the rules as SVG; nothing for a run that no workflow made."""
    rules = (run.pipeline or {}).get("rules", {})
    needs = without_shortcuts(upstream(rules))
    if not needs:
        return Markup()
    layout = lay_out(needs, BOX_WIDTH, BEND_WIDTH, GAP)
    parts = []
    for points in layout.edges.values():
        parts.append(f'<path class="edge" d="{edge(points)}"/>')
    for rule, (x, layer) in layout.place.items():
        parts.append(box(rule, x, layer, rules[rule]["jobs"], seconds.get(rule)))
    width, height = (
        layout.width + 2 * MARGIN,
        layout.layers * LAYER - (LAYER - BOX_HEIGHT) + 2 * MARGIN,
    )
    wide = max(width, 4 * (BOX_WIDTH + GAP))  # a narrow graph is not blown up
    view = f"{(width - wide) / 2 - MARGIN:.0f} {-MARGIN} {wide:.0f} {height:.0f}"
    svg = Markup(
        f'<svg viewBox="{view}" role="img" aria-label="graph of the rules">{"".join(parts)}</svg>'
    )
    return element(
        "figure",
        element(
            "figcaption",
            element("b", "Rules"),
            element("span", "from top to bottom", class_="muted"),
        ),
        svg,
        class_="chart graph",
    )


def box(rule: str, x: float, layer: int, jobs: int, seconds: float | None) -> str:
    """A rule: its name over two lines, and jobs × time."""
    left, top = x - BOX_WIDTH / 2, layer * LAYER
    first, _, second = rule.partition("_")
    kind = (
        "training"
        if rule in TRAINING
        else "made"
        if seconds is not None or rule == REPORT
        else "earlier"
    )
    jobs_shown = f"{count(jobs)} × · " if jobs > 1 else ""
    time = (
        "this page"
        if rule == REPORT
        else jobs_shown + (brief_duration(seconds) if seconds is not None else "earlier")
    )
    lines = [first, second, time] if second else [first, time]
    at = top + BOX_HEIGHT / 2 - 17 * (len(lines) - 1) / 2 + 4.5
    texts = "".join(
        f'<text x="{x:.1f}" y="{at + 17 * index:.1f}" text-anchor="middle"{" class=" + chr(34) + "name" + chr(34) if index < len(lines) - 1 else ""}>'
        f"{escape(line)}</text>"
        for index, line in enumerate(lines)
    )
    return f'<g class="{kind}"><rect x="{left:.1f}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7"/>{texts}</g>'


def edge(points: list[tuple[float, int]]) -> str:
    """A path from the lower side of the first box through the bends to the upper side of the last."""
    (x, layer), *further = points
    y = layer * LAYER + BOX_HEIGHT
    commands = [f"M{x:.1f},{y}"]
    for number, (next_x, next_layer) in enumerate(further, 1):
        top, last = next_layer * LAYER, number == len(further)
        middle = (y + top) / 2
        commands.append(f"C{x:.1f},{middle} {next_x:.1f},{middle} {next_x:.1f},{top}")
        x, y = next_x, top if last else top + BOX_HEIGHT
        if not last:
            commands.append(f"V{y}")
    return " ".join(commands)


def times(run: Run, seconds: dict[str, float]) -> Markup:
    """The rules by their time, longest first."""
    entries = []
    for rule, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if rule == REPORT:
            continue
        attempts, jobs = len(run.times[rule]), len({attempt["job"] for attempt in run.times[rule]})
        detail = f" ({count(jobs)} jobs)" if jobs > 1 else ""
        detail += f", {count(attempts)} attempts" if attempts > jobs else ""
        entries.append(
            Bar(rule + detail, value, brief_duration(value), 0 if rule in TRAINING else None)
        )
    return bars("Time per rule", "training in colour", entries)
