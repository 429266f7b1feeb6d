"""Line charts as inline SVG and bars: the style sheet colours them for a light and a dark theme.

A chart is drawn for a width of about 460 pixels, two beside each other on a desktop and one above
the other on a phone, so that its text is legible on both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from nanoeuler.evaluation.report.formats import short_count, significant
from nanoeuler.evaluation.report.rendering import render

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40  # margins
MOST_POINTS = 240
"""Longer series are averaged over equal stretches: more points than pixels show nothing more."""
MOST_VALUES = 1000
"""Most values of a series beside a drawing, into which one can zoom."""


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
    drawn = [one for one in series if one.points or one.level is not None]
    points = [point for one in drawn for point in one.finite]
    if not points:
        return Markup()
    values = [y for _, y in points] + [one.level for one in drawn if one.level is not None]
    values += [y for one in drawn for _, *ends in one.band for y in ends]
    if from_zero:
        values.append(0.0)
    logarithmic = logarithmic and min(values) > 0
    scale = math.log if logarithmic else float
    choose = log_ticks if logarithmic else ticks
    y_ticks = choose(min(values), max(values))
    y_low, y_high = min(y_ticks[0], *values), max(y_ticks[-1], *values)
    x_top = max(x for x, _ in points) or 1.0
    x_ticks = ticks(0.0, x_top)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        up = (scale(y) - scale(y_low)) / (scale(y_high) - scale(y_low))
        across = (x / x_top) * (WIDTH - LEFT - RIGHT) + LEFT
        return across, HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def lay_out(one: Series) -> dict[str, object]:
        """The pixels of a series."""
        if one.level is not None:
            return {"colour": one.colour, "level": to_pixels(0, one.level)[1]}
        line = [to_pixels(x, y) for x, y in thin(one.finite)]
        lower = [to_pixels(x, low) for x, low, _ in one.band]
        upper = [to_pixels(x, high) for x, _, high in one.band]
        return {
            "colour": one.colour,
            "level": None,
            "band": upper + lower[::-1],
            "line": line,
            "dots": line if one.dots or len(line) == 1 else [],
        }

    numbers = {
        "title": title,
        "x_label": x_label,
        "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
        "x": [0, x_top],
        "y": [y_low, y_high],
        "log": logarithmic,
        "from_zero": from_zero,
        "series": [numbers_of(one) for one in drawn],
    }
    return render(
        "chart.html",
        title=title,
        unit=unit,
        x_label=x_label,
        numbers=numbers,
        series=drawn,
        lines=[lay_out(one) for one in drawn],
        x_ticks=[(to_pixels(x, y_low)[0], tick_label(x, x_ticks)) for x in x_ticks if x <= x_top],
        y_ticks=[
            (to_pixels(0, y)[1], significant(y, 3) if logarithmic else tick_label(y, y_ticks))
            for y in y_ticks
        ],
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
    )


def numbers_of(one: Series) -> dict[str, object]:
    """A series as charts.js reads it: what it shows under the pointer, zoomed and as CSV."""
    points = one.finite if one.band else thin(one.finite, MOST_VALUES)
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


def thin(
    points: Sequence[tuple[float, float]], most: int = MOST_POINTS
) -> list[tuple[float, float]]:
    """At most that many points: the means of equal stretches."""
    if len(points) <= most:
        return list(points)
    edges = [round(index * len(points) / most) for index in range(most + 1)]
    stretches = [points[start:stop] for start, stop in pairwise(edges)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part))
        for part in stretches
    ]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round ticks, 1, 2 or 5 times a power of ten apart, around the range."""
    if high <= low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= raw * 0.999)
    return [
        index * step
        for index in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten that enclose the range, which lies above 0; where these
    are more than eight, the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max(index for index, tick in enumerate(every) if tick <= low * (1 + 1e-9))
    last = next(
        (index for index, tick in enumerate(every) if tick >= high * (1 - 1e-9)), len(every) - 1
    )
    enclosing = every[first : max(last, first + 1) + 1]
    return enclosing if len(enclosing) <= 8 else [10.0**power for power in powers]


def tick_label(value: float, among: Sequence[float]) -> str:
    """As many decimals as the distance of the ticks asks for; thousands and millions as k and M,
    small numbers with an exponent."""
    largest, step = max(abs(among[0]), abs(among[-1])), among[1] - among[0]
    if abs(value) < step / 2:
        return "0"
    if largest >= 1e4:
        return short_count(value)
    if largest < 0.01:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{significant(value / 10.0**exponent, 2)}e{exponent}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
