"""The depth picture: what the layers do to the residual stream, seen as the Euler trajectory that it is."""

import math
from itertools import pairwise
from typing import Any

from nanoeuler.evaluation.report.charts import Series, line_chart, log_ticks, ticks
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.headline import stage_name
from nanoeuler.evaluation.report.markup import (
    Markup,
    count,
    decimals,
    element,
    escape,
    join,
    section,
    significant,
    table,
)

WIDTH, TALLEST, MARGIN = 460, 330, 26
LOGARITHMIC = 6.0
"""Where the norm grows more than so many times, the picture's radius is its logarithm."""
INNERMOST = 0.3
"""Of the radius: where a logarithmic picture begins."""


def depth(run: Run) -> Markup:
    """The trajectory of the first model that has one, and a line for every stage's."""
    measured = {
        name: evaluation["trajectory"]
        for name, evaluation in run.evaluations.items()
        if evaluation.get("trajectory")
    }
    if not measured:
        return Markup()
    name, trajectory = next(iter(measured.items()))
    layers, h = trajectory["layers"], trajectory["step_size"]
    note = (
        f"A layer is two forward-Euler steps x ← x + h·f(x) with h = {significant(h, 3)}: attention's, then the MLP's. So {layers} layers take every token "
        f"through {2 * layers + 1} points. Shown are means over {count(trajectory['tokens'])} held-out tokens in the {stage_name(name)} model; "
        "bands hold the middle half of them."
    )
    steps = (
        ("relative_step", "Relative step", "‖h·f(x)‖ / ‖x‖"),
        ("stream_angle", "Turn of the stream", "degrees between x and its successor"),
    )
    steps += (
        ("step_angle", "Bend of the path", "degrees between a step and the one before"),
        ("cosine", "Step against stream", "cosine; above 0 lengthens x"),
    )
    figures = [
        plane(trajectory),
        norm_chart(trajectory),
        *(step_chart(trajectory, *step) for step in steps),
    ]
    return section(
        "Depth",
        element("p", note, class_="note"),
        element("div", join(figures), class_="grid"),
        stages_table(measured),
    )


def norm_chart(trajectory: dict[str, Any]) -> Markup:
    points = [(index / 2, stat["mean"]) for index, stat in enumerate(trajectory["norm"]) if stat]
    band = [
        (index / 2, *stat["quartiles"]) for index, stat in enumerate(trajectory["norm"]) if stat
    ]
    shown = significant(points[-1][1], 3) if points else None
    return line_chart(
        "Length of the stream",
        "RMS norm of x",
        "layers passed",
        [Series("x", points, 2, shown=shown, dots=True, band=band)],
        from_zero=True,
    )


def step_chart(trajectory: dict[str, Any], key: str, title: str, unit: str) -> Markup:
    """A line each for the steps of attention and of the MLP; the first step has none before it."""
    first = 1 if key == "step_angle" else 0
    lines = []
    for colour, half in enumerate(("attention", "MLP")):
        stats = [
            (index + first, stat)
            for index, stat in enumerate(trajectory[key])
            if stat and (index + first) % 2 == colour
        ]
        points = [(index // 2 + 1, stat["mean"]) for index, stat in stats]
        band = [(index // 2 + 1, *stat["quartiles"]) for index, stat in stats]
        lines.append(
            Series(
                half,
                points,
                colour,
                shown=f"{significant(points[-1][1], 3)} in the last" if points else None,
                dots=True,
                band=band,
            )
        )
    return line_chart(
        title,
        unit,
        "layer",
        lines,
        from_zero=key != "relative_step",
        logarithmic=key == "relative_step",
    )


# ---- the plane


def plane(trajectory: dict[str, Any]) -> Markup:
    """The mean trajectory laid into a plane: distance from the middle is the norm, and every step turns by its mean angle, to one side."""
    walked = polar(trajectory)
    if len(walked) < 2:
        return Markup()
    low, high = min(norm for norm, _ in walked), max(norm for norm, _ in walked)
    logarithmic = high > LOGARITHMIC * low

    def radius(norm: float) -> float:
        return (
            INNERMOST + (1 - INNERMOST) * math.log(norm / low) / math.log(high / low)
            if logarithmic
            else norm / high
        )

    flat = [polar_point(radius(norm), angle) for norm, angle in walked]
    left, right = min(0.0, *(x for x, _ in flat)), max(0.0, *(x for x, _ in flat))
    top, bottom = min(0.0, *(y for _, y in flat)), max(0.0, *(y for _, y in flat))
    scale = min(
        (WIDTH - 2 * MARGIN) / (right - left), (TALLEST - 2 * MARGIN) / max(bottom - top, 0.3)
    )
    height = (bottom - top) * scale + 2 * MARGIN
    middle_x, middle_y = WIDTH / 2 - (left + right) / 2 * scale, MARGIN - top * scale

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return middle_x + point[0] * scale, middle_y + point[1] * scale

    points = [place(point) for point in flat]
    parts = []
    half_way = next(index for index, (_, angle) in enumerate(walked) if angle >= walked[-1][1] / 2)
    for norm in log_ticks(low, high) if logarithmic else ticks(0.0, high, 3)[1:]:
        if norm > high:  # outside of the picture
            continue
        parts.append(
            f'<circle class="gridline ring" cx="{middle_x:.1f}" cy="{middle_y:.1f}" r="{radius(norm) * scale:.1f}"/>'
        )
        if (
            radius(norm) < radius(walked[half_way][0]) - 0.1
        ):  # a label on the way to the middle of the path, where nothing else is drawn
            x, y = place(polar_point(radius(norm), walked[half_way][1]))
            parts.append(
                f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{significant(norm, 2)}</text>'
            )
    parts.append(f'<circle class="origin" cx="{middle_x:.1f}" cy="{middle_y:.1f}" r="2.5"/>')
    for index, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        parts.append(
            f'<line class="line s{index % 2}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )
    for index, (x, y) in enumerate(points):
        kind = f"s{(index + 1) % 2}" if index else "start"
        parts.append(
            f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{3.4 if index % 2 == 0 else 2}"/>'
        )
    layers = (len(walked) - 1) // 2
    for layer in sorted({*range(0, layers + 1, max(1, round(layers / 6))), layers}):
        norm, angle = walked[2 * layer]
        x, y = place(polar_point(radius(norm) + 14 / scale, angle))
        parts.append(
            f'<text class="name" x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{layer}</text>'
        )
    keys = (("s0", "attention"), ("s1", "MLP"))
    legend = element(
        "div",
        join(
            (element("span", element("i", class_=f"key {key}"), label) for key, label in keys), ""
        ),
        class_="legend",
    )
    caption = f"distance from the middle: norm{', logarithmic' if logarithmic else ''}; numbers: layers passed; turned by {walked[-1][1]:.0f}° in all"
    title = "The trajectory, laid into a plane"
    svg = Markup(
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
    return element(
        "figure",
        element("figcaption", element("b", title), element("span", caption, class_="muted")),
        legend,
        svg,
        class_="chart",
    )


def polar_point(radius: float, degrees: float) -> tuple[float, float]:
    """Counter-clockwise from the right, in an image's coordinates (y grows downwards)."""
    return radius * math.cos(math.radians(degrees)), -radius * math.sin(math.radians(degrees))


def polar(trajectory: dict[str, Any]) -> list[tuple[float, float]]:
    """Mean norm and angle so far, in degrees, of every point; it ends where a value is missing or not positive."""
    walked, angle = [], 0.0
    for index, norm in enumerate(trajectory["norm"]):
        turn = trajectory["stream_angle"][index - 1] if index else {"mean": 0.0}
        if not norm or not turn or norm["mean"] <= 0:
            break
        angle += turn["mean"]
        walked.append((norm["mean"], angle))
    return walked


# ---- stages


def stages_table(measured: dict[str, dict[str, Any]]) -> Markup:
    """What the depth picture comes to in each stage."""
    rows = []
    for name, trajectory in measured.items():
        norms = [stat["mean"] if stat else None for stat in trajectory["norm"]]
        halves = [
            [stat["mean"] for stat in trajectory["relative_step"][half::2] if stat]
            for half in (0, 1)
        ]
        walked = polar(trajectory)
        complete = len(walked) == len(norms)
        mean_steps = [decimals(sum(half) / len(half)) if half else "–" for half in halves]
        rows.append(
            [
                stage_name(name),
                decimals(norms[0]),
                decimals(norms[-1]),
                f"{walked[-1][1]:.0f}°" if complete else "–",
                *mean_steps,
            ]
        )
    return table(
        ["", "norm at the start", "at the end", "turned in all", "relative step, attention", "MLP"],
        rows,
    )
