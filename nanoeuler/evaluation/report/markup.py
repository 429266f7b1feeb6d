"""HTML from values: text is escaped unless it is `Markup` already; numbers are shown the way people read them."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Markup(str):
    """Text that is HTML."""


def escape(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(parts: Iterable[Any], between: str = "\n") -> Markup:
    """Put the parts one behind another; None and empty ones are left out."""
    return Markup(between.join(escape(part) for part in parts if part is not None and part != ""))


def enumeration(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def element(tag: str, *content: Any, **attributes: Any) -> Markup:
    """<tag attribute="…">content</tag>. `class_` stands for class; an attribute that is None is left out."""
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{shown}>{join(content, '')}</{tag}>")


def section(title: str, *content: Any) -> Markup:
    """A titled section, or nothing when there is no content."""
    inside = join(content)
    return element("section", element("h2", title), inside) if inside else Markup()


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    numeric_from: int = 1,
    class_: str | None = None,
) -> Markup:
    """A table that scrolls sideways by itself where the screen is narrow. Columns from `numeric_from` on are aligned as numbers."""

    def row(tag: str, values: Sequence[Any]) -> Markup:
        """Cells; the first of a body's row is its heading."""
        cells = []
        for index, value in enumerate(values):
            heads = tag == "td" and index == 0
            cells.append(
                element(
                    "th" if heads else tag,
                    value,
                    class_="number" if index >= numeric_from else None,
                    scope="row" if heads else None,
                )
            )
        return element("tr", join(cells, ""))

    body = join(row("td", values) for values in rows)
    if not body:
        return Markup()
    return element(
        "div",
        element(
            "table", element("thead", row("th", columns)), element("tbody", body), class_=class_
        ),
        class_="scroll",
    )


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    colour: int | None = None  # a place in the palette; None: the muted colour of baselines
    error: float | None = None  # half the length of the error bar


def bars(title: str, note: str, entries: Sequence[Bar], maximum: float | None = None) -> Markup:
    """Horizontal bars from zero with their values written behind them."""
    if not entries:
        return Markup()
    top = maximum or max(entry.value + (entry.error or 0) for entry in entries) or 1.0
    rows = []
    for entry in entries:
        fill = element(
            "i",
            class_=f"fill s{entry.colour}" if entry.colour is not None else "fill baseline",
            style=f"width:{percent_of(entry.value, top)}",
        )
        whisker = Markup()
        if entry.error:
            low = max(0.0, entry.value - entry.error)
            whisker = element(
                "i",
                class_="whisker",
                style=f"left:{percent_of(low, top)};width:{percent_of(entry.value + entry.error - low, top)}",
            )
        rows.append(
            element(
                "div",
                element("span", entry.label, class_="label"),
                element("span", fill, whisker, class_="track"),
                element("b", entry.shown),
                class_="bar",
            )
        )
    return element(
        "figure",
        element("figcaption", element("b", title), element("span", note, class_="muted")),
        join(rows),
        class_="bars",
    )


def percent_of(value: float, top: float) -> str:
    return f"{100 * min(1.0, max(0.0, value / top)):.2f}%"


# ---- numbers

NARROW = "\u202f"
"""Between a number and its unit: narrow, and no line breaks there."""


def count(value: float) -> str:
    return f"{value:,.0f}"


def short_count(value: float) -> str:
    """Three digits and a letter: 950, 1.05 M, 267 M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{significant(value / limit, 3)}{NARROW}{letter}"
    return significant(value, 3)


def size(value: float) -> str:
    """Bytes in decimal units."""
    return short_count(value) + ("B" if value >= 999.5 else f"{NARROW}B")


def significant(value: float, digits: int) -> str:
    """That many significant digits, without an exponent or trailing zeros of a fraction."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}{NARROW}%"


def decimals(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def scientific(value: float | None) -> str:
    """4.5 × 10⁻⁹; a power of ten alone as 10⁻⁶."""
    if value is None:
        return "not a number"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1.0" else f"{mantissa} × {power}"


def duration(seconds: float) -> str:
    """8 s, 2 min 05 s, 3 h 10 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def brief_duration(seconds: float) -> str:
    """Where there is little room: 0.4 s, 8 s, 2m05, 3h10."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f}{NARROW}s"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}{NARROW}s"
    return (
        f"{seconds // 60}m{seconds % 60:02d}"
        if seconds < 3600
        else f"{seconds // 3600}h{seconds % 3600 // 60:02d}"
    )
