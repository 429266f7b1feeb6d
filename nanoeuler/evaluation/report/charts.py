"""Line charts, which scripts/charts.js draws from the numbers beside them, and bars in HTML.

Without a script a chart still has its title, and its legend the last value of each series.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from nanoeuler.evaluation.report.rendering import render

MOST_VALUES = 1000
"""Longer series are averaged over equal stretches: more would make the page large."""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    colour: int | None = None  # index into the palette; None: the muted colour of baselines
    error: float | None = None  # half the length of the error bar


def bars(title: str, note: str, entries: Sequence[Bar], maximum: float | None = None) -> Markup:
    """Horizontal bars from zero to `maximum`, by default the largest; nothing without entries."""
    if not entries:
        return Markup()
    top = maximum or max(entry.value + (entry.error or 0) for entry in entries) or 1.0
    return render("bars.html", title=title, note=note, bars=entries, top=top)


@dataclass(frozen=True)
class Series:
    """A line through (x, y) points, or with `level` a dashed horizontal line at one value of y."""

    label: str
    points: Sequence[tuple[float, float]] = ()
    colour: int = 0  # index into the palette
    level: float | None = None
    shown: str | None = None  # last value, for the legend
    dots: bool = False  # mark the points, where there are few
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high) shaded behind the line

    @property
    def finite(self) -> list[tuple[float, float]]:
        return [point for point in self.points if math.isfinite(point[1])]

    @property
    def has_level(self) -> bool:
        return self.level is not None and math.isfinite(self.level)


def line_chart(
    title: str,
    unit: str,
    x_label: str,
    series: Sequence[Series],
    *,
    from_zero: bool = False,
    logarithmic: bool = False,
) -> Markup:
    """A titled chart with a legend that tells the last value of each series; nothing without a
    point to draw. `logarithmic` draws the logarithm of y where all of it is above 0.
    """
    drawn = [one for one in series if one.points or one.has_level]
    points = [point for one in drawn for point in one.finite]
    if not points:
        return Markup()
    numbers = {
        "title": title,
        "x_label": x_label,
        "x": [0, max(x for x, _ in points) or 1.0],
        "log": logarithmic,
        "from_zero": from_zero,
        "series": [numbers_of(one) for one in drawn],
    }
    return render("chart.html", title=title, unit=unit, numbers=numbers, series=drawn)


def numbers_of(one: Series) -> dict[str, object]:
    """A series as charts.js reads it: what it draws, shows under the pointer and saves as CSV."""
    points = one.finite if one.band else thin(one.finite)
    ends = {"low": [low for _, low, _ in one.band], "high": [high for _, _, high in one.band]}
    return {
        "label": one.label,
        "colour": one.colour,
        "level": one.level,
        "dots": one.dots,
        "x": [round_off(x) for x, _ in points],
        "y": [round_off(y) for _, y in points],
        **{name: list(map(round_off, values)) for name, values in ends.items() if values},
    }


def round_off(value: float) -> float:
    """Six significant digits: more would double the size of the page."""
    return float(f"{value:.6g}")


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_VALUES` points: the means of equal stretches."""
    if len(points) <= MOST_VALUES:
        return list(points)
    edges = [round(index * len(points) / MOST_VALUES) for index in range(MOST_VALUES + 1)]
    stretches = [points[start:stop] for start, stop in pairwise(edges)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part))
        for part in stretches
    ]
