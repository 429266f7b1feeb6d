"""The scores of several models side by side, as a table for a terminal and for Markdown.

nanoeuler compare results/demo/evaluation/pretrain.json results/demo/evaluation/sft.json
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.evaluation.formats import NARROW, markdown_cell
from nanoeuler.evaluation.scores import head_lines, score_lines, without
from nanoeuler.storage.integrity import Origin, read_sealed

Evaluation = Mapping[str, Any]
EVALUATION = Origin("`nanoeuler evaluate`", "delete it, or let `nanoeuler evaluate` write it again")


def read_evaluations(paths: Sequence[Path]) -> dict[str, Evaluation]:
    """Evaluations by the names of their files; where two files have one name, the names of their
    runs stand before all."""
    evaluations: dict[str, Evaluation] = {}
    of_several_runs = len({path.stem for path in paths}) < len(paths)
    for path in paths:
        mend = "give the JSON files that `nanoeuler evaluate` writes"
        value = read_sealed(path, EVALUATION, "an evaluation", "held_out", mend)
        name = path.stem
        if of_several_runs:
            name = f"{path.absolute().parent.parent.name}/{name}"
        evaluations[name] = value
    return evaluations


def compare(evaluations: Mapping[str, Evaluation]) -> str:
    """A Markdown table: a column for each evaluation, in their order, and one for baselines, if
    there are any."""
    measured = list(evaluations.values())
    lines = [*score_lines(measured, {}), *head_lines(measured)]
    rows = [["", *evaluations, "baseline"], *(list(map(plain, line.row)) for line in lines)]
    if all(baseline == "–" for *_, baseline in rows[1:]):
        rows = [row[:-1] for row in rows]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "|".join(["-" * (first + 2), *("-" * (width + 1) + ":" for width in others)])
    table = []
    for title, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        table.append(f"| {' | '.join([title.ljust(first), *aligned])} |")
    return "\n".join([table[0], f"|{rule}|", *table[1:]])


def plain(cell: str) -> str:
    return markdown_cell(cell).replace(NARROW, " ")


def scores(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Any]]:
    """The scores of each evaluation, for programs: without single replies and groups of items."""
    return {
        name: {
            **{key: each.get(key) for key in ("stage", "parameters", "held_out", "chat")},
            "tasks": {
                task: without(score, "groups") for task, score in (each.get("tasks") or {}).items()
            },
            "answers": without(each["answers"], "replies") if each.get("answers") else None,
        }
        for name, each in evaluations.items()
    }
