"""Line charts as inline SVG: colours come from the page's style sheet, so they follow its light and dark themes.

A chart is drawn for a width of about 460 pixels, two beside each other on a desktop and one above the other on a phone,
so that its text is legible on both.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanoeuler.evaluation.report.markup import (
    Markup,
    element,
    escape,
    join,
    short_count,
    significant,
)

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40
MOST_POINTS = 240
"""Longer series are averaged within equal stretches: more points than pixels show nothing more."""


@dataclass(frozen=True)
class Series:
    """A line through (x, y) points, or with `level` a dashed horizontal line at one value of y."""

    label: str
    points: Sequence[tuple[float, float]] = ()
    colour: int = 0  # a place in the palette
    level: float | None = None
    shown: str | None = None  # last value, for the legend
    dots: bool = False  # mark the points, where there are few
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high) shaded behind the line


def line_chart(
    title: str,
    unit: str,
    x_label: str,
    series: Sequence[Series],
    from_zero: bool = False,
    logarithmic: bool = False,
) -> Markup:
    """A titled chart with a legend that tells each series' last value. Nothing when there is no point to draw.

    `logarithmic` draws the logarithm of y where all of it is above 0.
    """
    drawn = [one for one in series if one.points or one.level is not None]
    points = [point for one in drawn for point in one.points if math.isfinite(point[1])]
    if not points:
        return Markup()
    values = (
        [y for _, y in points]
        + [one.level for one in drawn if one.level is not None]
        + ([0.0] if from_zero else [])
    )
    values += [y for one in drawn for _, *ends in one.band for y in ends]
    logarithmic = logarithmic and min(values) > 0
    x_ticks = ticks(0.0, max(x for x, _ in points) or 1.0, 5)
    y_ticks = (
        log_ticks(min(values), max(values)) if logarithmic else ticks(min(values), max(values), 5)
    )
    x_top = max(x for x, _ in points) or 1.0
    scale = math.log if logarithmic else float
    y_low, y_high = min(y_ticks[0], *values), max(y_ticks[-1], *values)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x / x_top) * (WIDTH - LEFT - RIGHT) + LEFT
        return across, HEIGHT - BOTTOM - (scale(y) - scale(y_low)) / (
            scale(y_high) - scale(y_low)
        ) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts.append(
            f'<line class="gridline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 7}" y="{y + 4.5:.1f}" text-anchor="end">{significant(tick, 3) if logarithmic else tick_label(tick, y_ticks)}</text>'
        )
    for tick in (tick for tick in x_ticks if tick <= x_top):
        x = place(tick, y_low)[0]
        anchor = "end" if x > WIDTH - RIGHT - 14 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">{tick_label(tick, x_ticks)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(WIDTH + LEFT - RIGHT) / 2}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for one in drawn:
        if one.level is not None:
            y = place(0, one.level)[1]
            parts.append(
                f'<line class="level s{one.colour}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            continue
        if one.band:
            outline = [place(x, high) for x, _, high in one.band] + [
                place(x, low) for x, low, _ in reversed(one.band)
            ]
            parts.append(
                f'<polygon class="band s{one.colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in outline)}"/>'
            )
        placed = [
            place(x, y) for x, y in thin([point for point in one.points if math.isfinite(point[1])])
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="line s{one.colour}" points="{path}"/>')
        if one.dots or len(placed) == 1:
            parts.extend(
                f'<circle class="dot s{one.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
                for x, y in placed
            )
    svg = Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
    caption = element("figcaption", element("b", title), element("span", unit, class_="muted"))
    return element("figure", caption, legend(drawn), svg, class_="chart")


def legend(series: Sequence[Series]) -> Markup:
    entries = []
    for one in series:
        key = element(
            "i", class_=f"key s{one.colour}" + (" dashed" if one.level is not None else "")
        )
        entries.append(
            element(
                "span",
                key,
                one.label,
                Markup("&nbsp;"),
                element("b", one.shown) if one.shown else "",
            )
        )
    return element("div", join(entries, ""), class_="legend")


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` points: the means of equal stretches."""
    if len(points) <= MOST_POINTS:
        return list(points)
    edges = [round(index * len(points) / MOST_POINTS) for index in range(MOST_POINTS + 1)]
    stretches = [points[start:stop] for start, stop in itertools.pairwise(edges)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part))
        for part in stretches
    ]


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers (1, 2 or 5 times a power of ten apart) that enclose low … high."""
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
    """1, 2 and 5 times the powers of ten that enclose low … high, both above 0; of more than eight only the powers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max(index for index, tick in enumerate(every) if tick <= low * (1 + 1e-9))
    last = next(
        (index for index, tick in enumerate(every) if tick >= high * (1 - 1e-9)), len(every) - 1
    )
    enclosing = every[first : max(last, first + 1) + 1]
    return enclosing if len(enclosing) <= 8 else [10.0**power for power in powers]


def tick_label(value: float, among: Sequence[float]) -> str:
    """As many decimals as the distance of the ticks asks for; thousands and millions as k and M, small numbers with an exponent."""
    largest, step = max(abs(among[0]), abs(among[-1])), among[1] - among[0]
    if abs(value) < step / 2:
        return "0"
    if largest >= 1e4:
        return short_count(value)
    if largest < 0.01:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{significant(value / 10.0**exponent, 2)}e{exponent}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
