"""Values in the form that people read: numbers, durations, names. Templates use them as filters."""

import math
import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from nanoeuler.config.stages import BY_NAME, in_order
from nanoeuler.log import format_seconds
from nanoeuler.system.energy import ENERGIES

UNITS = {"h": " h ", "m": " min ", "s": " s"}
NARROW = "\u202f"
"""The narrow no-break space between a number and its unit."""


def stage_name(stage: str) -> str:
    return BY_NAME[stage].title if stage in BY_NAME else stage


def stage_colour(stage: str) -> int:
    """Index into the palette."""
    return in_order(BY_NAME).index(stage) if stage in BY_NAME else len(BY_NAME) - 1


def enumeration(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def with_commas(value: float) -> str:
    return f"{value:,.0f}"


def short_count(value: float) -> str:
    """Three digits and a letter: 950, 1.05 M, 267 M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{significant(value / limit, 3)}{NARROW}{letter}"
    return significant(value, 3)


def size(value: float, unit: str = "B") -> str:
    """Bytes in decimal units."""
    return short_count(value) + (unit if value >= 999.5 else f"{NARROW}{unit}")


def joules(value: float) -> str:
    return size(value, "J")


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
    """0.4 s, 8 s, 2 min 05 s, 3 h 10 min."""
    if 0 < seconds < 0.95:
        return f"{seconds:.1f} s"
    return re.sub("[hms]", lambda found: UNITS[found[0]], format_seconds(seconds)).strip()


def energy(taken: Mapping[str, float]) -> str:
    """46.1 kJ GPU + 3.2 kJ CPU, as far as it is measured."""
    return " + ".join(f"{joules(taken[kind])} {ENERGIES[kind]}" for kind in taken) or "not measured"


def css_share(value: float, whole: float) -> str:
    """A length in CSS; NaN has none."""
    return f"{100 * min(1.0, max(0.0, value / whole)):.2f}%"


def paragraph(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split()) + "\n"


def markdown_cell(cell: str) -> str:
    """The text of a table's cell, which may be HTML, for a table in Markdown."""
    text = cell.striptags() if isinstance(cell, Markup) else " ".join(cell.split())
    return text.replace("|", "\\|")


FILTERS = (
    *(stage_name, stage_colour, enumeration, with_commas, short_count, size, significant),
    *(percent, decimals, scientific, duration, energy),
    *(css_share, paragraph, markdown_cell),
)
