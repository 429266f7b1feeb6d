"""Markdown tables of counts."""

from collections.abc import Iterable


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; all columns but the first are aligned to the right."""
    columns = list(header)
    rule = ["---"] + ["--:"] * (len(columns) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows))
