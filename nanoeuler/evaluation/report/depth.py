"""The residual stream as an Euler trajectory through the layers, in pictures."""

import math
from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from nanoeuler.evaluation.formats import decimals, percent, significant, stage_name
from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render

LOGARITHMIC = 6.0
"""Growth of the norm beyond which the picture's radius is its logarithm."""


def depth(run: Run) -> Markup:
    """Pictures of the first trajectory that was measured, and a table row for every stage's."""
    measured = run.evaluated("trajectory")
    if not measured:
        return Markup()
    stage, trajectory = next(iter(measured.items()))
    looks = (run.evaluations[stage].get("reading") or {}).get("lens")
    figures = [
        plane(trajectory),
        lens(looks) if looks else Markup(),
        render("attention.html", looks=looks) if looks and looks["attention"] else Markup(),
        norm_chart(trajectory),
        step_chart(trajectory, "relative_step", "Relative step", "‖h·f(x)‖ / ‖x‖"),
        step_chart(
            trajectory, "stream_angle", "Turn of the stream", "degrees between x and its successor"
        ),
        step_chart(
            trajectory,
            "step_angle",
            "Bend of the path",
            "degrees between a step and the one before",
        ),
        step_chart(trajectory, "cosine", "Step against stream", "cosine; above 0 lengthens x"),
    ]
    rows = [stage_row(name, each) for name, each in measured.items()]
    return render(
        "depth.html",
        stage=stage,
        trajectory=trajectory,
        figures=[figure for figure in figures if figure],
        rows=rows,
    )


def lens(looks: Json) -> Markup:
    """The logit lens: top tokens after each Euler step, a row for each point."""
    rows = []
    points = zip(looks["guesses"], looks["shares"], strict=False)
    for point, (guesses, shares) in enumerate(points):
        cells = [
            [(guess, percent(share, 0)) for guess, share in zip(*both, strict=False)]
            for both in zip(guesses, shares, strict=False)
        ]
        tints = [round(60 * each[0]) if each and math.isfinite(each[0]) else 0 for each in shares]
        rows.append((point_name(point), list(zip(cells, tints, strict=False))))
    return render("lens.html", tokens=looks["tokens"], rows=rows)


def point_name(point: int) -> str:
    if point == 0:
        return "embedding"
    return f"layer {(point + 1) // 2}, {'attention' if point % 2 else 'MLP'}"


def norm_chart(trajectory: Json) -> Markup:
    stats = [(index / 2, stat) for index, stat in enumerate(trajectory["norm"]) if stat]
    return line_chart(
        "Length of the stream",
        "RMS norm of x",
        "layers passed",
        [mean_and_quartiles("x", stats, 2)],
        from_zero=True,
    )


def step_chart(trajectory: Json, key: str, title: str, unit: str) -> Markup:
    """A line for the steps of attention and one for those of the MLP."""
    first = 1 if key == "step_angle" else 0  # the first step has none before it
    steps = [(step, stat) for step, stat in enumerate(trajectory[key], first) if stat]
    lines = []
    for half, label in enumerate(("attention", "MLP")):
        stats = [(step // 2 + 1, stat) for step, stat in steps if step % 2 == half]
        lines.append(mean_and_quartiles(label, stats, half, " in the last"))
    relative = key == "relative_step"
    return line_chart(title, unit, "layer", lines, from_zero=not relative, logarithmic=relative)


def mean_and_quartiles(
    label: str, stats: Sequence[tuple[float, Json]], colour: int, remark: str = ""
) -> Series:
    points = [(x, stat["mean"]) for x, stat in stats]
    band = [(x, *stat["quartiles"]) for x, stat in stats]
    shown = significant(points[-1][1], 3) + remark if points else None
    return Series(label, points, colour, shown=shown, dots=True, band=band)


def plane(trajectory: Json) -> Markup:
    """The mean trajectory laid into a plane: the distance from the middle is the norm, and every
    step rotates by its mean angle, to one side."""
    path = polar(trajectory)
    if len(path) < 2:
        return Markup()
    norms = [norm for norm, _ in path]
    numbers = {
        "norms": norms,
        "angles": [angle for _, angle in path],
        "names": [point_name(point) for point in range(len(path))],
        "log": max(norms) > LOGARITHMIC * min(norms),
    }
    return render("trajectory.html", numbers=numbers)


def polar(trajectory: Json) -> list[tuple[float, float]]:
    """Mean norm and summed angle, in degrees, of every point; it ends where a value is missing or
    not positive."""
    path, angle = [], 0.0
    steps = [{"mean": 0.0}, *trajectory["stream_angle"]]
    for norm, step in zip(trajectory["norm"], steps, strict=False):
        if not norm or not step or norm["mean"] <= 0:
            break
        angle += step["mean"]
        path.append((norm["mean"], angle))
    return path


def stage_row(stage: str, trajectory: Json) -> list[str]:
    norms = [stat["mean"] if stat else None for stat in trajectory["norm"]]
    path = polar(trajectory)
    turned = f"{path[-1][1]:.0f}°" if len(path) == len(norms) else "–"
    row = [stage_name(stage), decimals(norms[0]), decimals(norms[-1]), turned]
    for half in (0, 1):  # attention, MLP
        steps = [stat["mean"] for stat in trajectory["relative_step"][half::2] if stat]
        row.append(decimals(fmean(steps)) if steps else "–")
    return row
