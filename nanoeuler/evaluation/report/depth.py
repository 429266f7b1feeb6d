"""The depth picture: what the layers do to the residual stream, seen as the Euler trajectory that it is."""

import math
from itertools import pairwise
from typing import Any

from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.headline import stage_name
from nanoeuler.evaluation.report.markup import Markup, count, decimals, element, escape, join, section, significant, table

SIZE, MARGIN, CENTRE = 460, 30, 230
LOGARITHMIC = 6.0
"""Where the norm grows more than so many times, the picture's radius is its logarithm."""
INNERMOST = 0.3
"""Of the radius: where a logarithmic picture begins."""


def depth(run: Run) -> Markup:
    """The trajectory of the first model that has one, and a line for every stage's."""
    measured = {name: evaluation["trajectory"] for name, evaluation in run.evaluations.items() if evaluation.get("trajectory")}
    if not measured:
        return Markup()
    name, trajectory = next(iter(measured.items()))
    layers, h = trajectory["layers"], trajectory["step_size"]
    note = (
        f"A layer is two forward-Euler steps x ← x + h·f(x) with h = {significant(h, 3)}: attention's, then the MLP's. So {layers} layers take every token "
        f"through {2 * layers + 1} points. Shown are means over {count(trajectory['tokens'])} held-out tokens in the {stage_name(name)} model; "
        "bands hold the middle half of them."
    )
    steps = (("relative_step", "Relative step", "‖h·f(x)‖ / ‖x‖"), ("stream_angle", "Turn of the stream", "degrees between x and its successor"))
    steps += (("step_angle", "Bend of the path", "degrees between a step and the one before"), ("cosine", "Step against stream", "cosine; above 0 lengthens x"))
    figures = [plane(trajectory), norm_chart(trajectory), *(step_chart(trajectory, *step) for step in steps)]
    return section("Depth", element("p", note, class_="note"), element("div", join(figures), class_="grid"), stages_table(measured))


def norm_chart(trajectory: dict[str, Any]) -> Markup:
    points = [(index / 2, stat["mean"]) for index, stat in enumerate(trajectory["norm"]) if stat]
    band = [(index / 2, *stat["quartiles"]) for index, stat in enumerate(trajectory["norm"]) if stat]
    shown = significant(points[-1][1], 3) if points else None
    return line_chart("Length of the stream", "RMS norm of x", "layers passed", [Series("x", points, 2, shown=shown, dots=True, band=band)], from_zero=True)


def step_chart(trajectory: dict[str, Any], key: str, title: str, unit: str) -> Markup:
    """A line each for the steps of attention and of the MLP; the first step has none before it."""
    first = 1 if key == "step_angle" else 0
    lines = []
    for colour, half in enumerate(("attention", "MLP")):
        stats = [(index + first, stat) for index, stat in enumerate(trajectory[key]) if stat and (index + first) % 2 == colour]
        points = [(index // 2 + 1, stat["mean"]) for index, stat in stats]
        band = [(index // 2 + 1, *stat["quartiles"]) for index, stat in stats]
        lines.append(Series(half, points, colour, shown=f"{significant(points[-1][1], 3)} in the last" if points else None, dots=True, band=band))
    return line_chart(title, unit, "layer", lines, from_zero=True)


# ---- the plane


def plane(trajectory: dict[str, Any]) -> Markup:
    """The mean trajectory laid into a plane: distance from the middle is the norm, and every step turns by its mean angle, to one side."""
    walked = polar(trajectory)
    if len(walked) < 2:
        return Markup()
    norms = [norm for norm, _ in walked]
    low, high = min(norms), max(norms)
    logarithmic = high > LOGARITHMIC * low

    def radius(norm: float) -> float:
        share = INNERMOST + (1 - INNERMOST) * math.log(norm / low) / math.log(high / low) if logarithmic else norm / high
        return share * (CENTRE - MARGIN)

    def place(norm: float, angle: float) -> tuple[float, float]:
        return CENTRE + radius(norm) * math.cos(math.radians(angle)), CENTRE - radius(norm) * math.sin(math.radians(angle))

    points = [place(norm, angle) for norm, angle in walked]
    parts = []
    for norm in rings(low if logarithmic else 0.0, high, logarithmic):
        parts.append(f'<circle class="gridline ring" cx="{CENTRE}" cy="{CENTRE}" r="{radius(norm):.1f}"/>')
        parts.append(f'<text x="{CENTRE}" y="{CENTRE + radius(norm) - 4:.1f}" text-anchor="middle">{significant(norm, 2)}</text>')
    parts.append(f'<circle class="origin" cx="{CENTRE}" cy="{CENTRE}" r="2.5"/>')
    for index, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        parts.append(f'<line class="line s{index % 2}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    for index, (x, y) in enumerate(points):
        kind = f"s{(index + 1) % 2}" if index else "start"
        parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{3.2 if index % 2 == 0 else 2}"/>')
    every = max(1, len(walked) // 2 // 6)
    for layer in [*range(0, len(walked) // 2, every), len(walked) // 2]:
        norm, angle = walked[2 * layer]
        distance = radius(norm) + 13
        x, y = CENTRE + distance * math.cos(math.radians(angle)), CENTRE - distance * math.sin(math.radians(angle))
        parts.append(f'<text class="name" x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{layer}</text>')
    keys = (("s0", "attention"), ("s1", "MLP"))
    legend = element("div", join((element("span", element("i", class_=f"key {key}"), label) for key, label in keys), ""), class_="legend")
    caption = f"distance from the middle: norm{', logarithmic' if logarithmic else ''}; numbers: layers passed; turned by {walked[-1][1]:.0f}° in all"
    title = "The trajectory, laid into a plane"
    svg = Markup(f'<svg viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>')
    return element("figure", element("figcaption", element("b", title), element("span", caption, class_="muted")), legend, svg, class_="chart plane")


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


def rings(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round norms between low and high: 1, 2 and 5 times powers of ten where the radius is logarithmic, else two to five equal distances."""
    power = 10.0 ** math.floor(math.log10(high))
    if logarithmic:
        start = math.floor(math.log10(low))
        return [value for exponent in range(start, start + 12) for digit in (1, 2, 5) if low <= (value := digit * 10.0**exponent) <= high]
    distance = next(step for step in (power / 5, power / 2, power, 2 * power, 5 * power) if high / step < 5)
    return [index * distance for index in range(1, int(high / distance) + 1)]


# ---- stages


def stages_table(measured: dict[str, dict[str, Any]]) -> Markup:
    """What the depth picture comes to in each stage."""
    rows = []
    for name, trajectory in measured.items():
        norms = [stat["mean"] if stat else None for stat in trajectory["norm"]]
        halves = [[stat["mean"] for stat in trajectory["relative_step"][half::2] if stat] for half in (0, 1)]
        walked = polar(trajectory)
        complete = len(walked) == len(norms)
        mean_steps = [decimals(sum(half) / len(half)) if half else "–" for half in halves]
        rows.append([stage_name(name), decimals(norms[0]), decimals(norms[-1]), f"{walked[-1][1]:.0f}°" if complete else "–", *mean_steps])
    return table(["", "norm at the start", "at the end", "turned in all", "relative step, attention", "MLP"], rows)
