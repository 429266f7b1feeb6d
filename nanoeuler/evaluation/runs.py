"""Many runs in one table: how far they are, their scores and cost, and the settings that differ.

A run is a flat record: `seconds`, `bits_per_byte.books`, `pretrain.learning_rate`, and so on.
"""

import csv
import difflib
import io
import json
import math
import operator
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.config.stages import in_order, is_baseline
from nanoeuler.errors import UserError
from nanoeuler.evaluation.formats import decimals, duration, joules, percent, short_count
from nanoeuler.evaluation.report.gather import Run, gather, is_run, kept_configuration, read_stage
from nanoeuler.evaluation.report.side_by_side import name_runs, shown
from nanoeuler.evaluation.scores import score_lines
from nanoeuler.system.energy import ENERGIES

Record = dict[str, Any]

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONDITION = re.compile(
    f"(?P<key>[^=<>!]+)(?P<operator>{'|'.join(OPERATORS)})(?P<value>[^=<>!].*)", re.DOTALL
)
SHOWN: dict[str, Callable[[Any], str]] = {
    "parameters": short_count,
    "tokens": short_count,
    "seconds": duration,
    **dict.fromkeys(ENERGIES, joules),
    "tokens_per_second": short_count,
    "mfu": percent,
    "bits_per_byte": decimals,
    "answers": percent,
    "tasks": percent,
}
"""How people read the values of a key, by its first part."""


def run_folders(places: Iterable[Path]) -> list[Path]:
    """The folders of runs among `places` and directly in them. Raises `UserError` for a place that
    is neither a run nor holds one."""
    found: list[Path] = []
    for place in places:
        here = [place] if is_run(place) else sorted(filter(is_run, place.glob("*/")))
        if not here:
            trials = next(place.glob("experiments/*/*/configuration.json"), None)
            instead = f"those of an experiment, {trials.parents[1]}" if trials else "results"
            raise UserError(f"{place}: no run is there; give a folder of runs, such as {instead}")
        found += here
    return list(dict.fromkeys(found))


def evaluation_files(places: Iterable[Path]) -> list[Path]:
    """The files of evaluations among `places`, and those in the runs among them, by their stages.

    Raises `UserError` for a place that holds none.
    """
    found: list[Path] = []
    for place in places:
        if place.is_file():
            found.append(place)
            continue
        folder = place / "evaluation" if (place / "evaluation").is_dir() else place
        stages = in_order({path.stem for path in folder.glob("*.json")})
        if folder.name != "evaluation" or not stages:
            raise UserError(
                f"{place}: holds no evaluations; give the folder of a run, such as results/demo, "
                "or files that `nanoeuler evaluate` wrote"
            )
        found += [folder / f"{stage}.json" for stage in stages]
    return found


def cost_beside(file: Path) -> dict[str, float]:
    """What the training of the model took that an evaluation measured, where it lies in a run."""
    folder, run = file.parent, file.parent.parent
    return read_stage(run, file.stem).cost if folder.name == "evaluation" else {}


def read_runs(folders: Iterable[Path]) -> tuple[dict[str, Run], list[str]]:
    """The runs by the names that they go by, and a sentence for each that is damaged."""
    found: dict[Path, Run] = {}
    damaged = []
    for folder in folders:
        try:
            found[folder] = gather(kept_configuration(folder), folder)
        except UserError as error:
            damaged.append(str(error))
    return name_runs(list(found), list(found.values())), damaged


def held_out_columns(runs: Mapping[str, Run]) -> dict[str, dict[str, str]]:
    """Run → source → the column of its bits per byte.

    Runs share a column where their held-out text of that source is the same. Otherwise each text
    has its own, which is called by the first run that was measured on it.
    """
    first: dict[str, dict[Any, str]] = {}  # source → text → run
    for name, run in runs.items():
        for source in run.bits_per_byte:
            first.setdefault(source, {}).setdefault(held_out_text(run, source) or name, name)
    return {
        name: {
            source: f"bits_per_byte.{source}"
            + (f"@{texts[held_out_text(run, source) or name]}" if len(texts) > 1 else "")
            for source, texts in first.items()
            if source in run.bits_per_byte
        }
        for name, run in runs.items()
    }


def held_out_text(run: Run, source: str) -> tuple[str, ...] | None:
    """Identity of the held-out text of a source; None where nothing is known of it."""
    text = run.sources.get(source, {}).get("validation", {}).get("sha256")
    if text:
        return (text,)
    tokens = (run.first.evaluation or {}).get("tokens_fingerprint")
    return (tokens, source) if tokens else None


def describe(name: str, run: Run, columns: Mapping[str, str]) -> Record:
    """Scores and costs of a run. The first stage scores held-out text, the last one replies.
    `columns` are those of its held-out texts.
    """
    stages = [stage for name, stage in run.stages.items() if not is_baseline(name)] or [run.first]
    evaluation: Record = next((s.evaluation for s in reversed(stages) if s.evaluation), {})
    scores = {line.key: line.values[0] for line in score_lines([evaluation], {}) if line.key}
    return {
        "run": name,
        "state": stages[-1].state,
        **{columns[source]: value for source, value in run.bits_per_byte.items()},
        **{key: value for key, value in scores.items() if not key.startswith("bits_per_byte")},
        "seconds": sum(stage.last.get("seconds") or 0 for stage in run.stages.values()),
        **run.joules,
        "parameters": run.first.parameters,
        "tokens": run.first.last.get("tokens"),
        "tokens_per_second": run.first.tokens_per_second,
        "mfu": run.first.mfu,
        "started": run.first.header.get("started"),
    }


def select(
    records: list[Record], conditions: Sequence[str], sort: str | None, reverse: bool
) -> list[Record]:
    """The records that meet all conditions, such as "seconds<3600", by the value of a key; those
    that lack it come last."""
    every, keys = records, list(dict.fromkeys(key for record in records for key in record))
    for text in conditions:
        match = CONDITION.fullmatch(text)
        if not match:
            raise UserError(
                f"--where {text!r}: write a key, one of {' '.join(OPERATORS)}, and a value, such "
                "as 'pretrain.learning_rate>=1e-3'"
            )
        key, compare, value = match["key"].strip(), match["operator"], match["value"].strip()
        require_key(key, keys, "--where")
        require_value(text, value, [record.get(key) for record in every])
        records = [each for each in records if meets(each.get(key), compare, value)]
    if sort:
        require_key(sort, keys, "--sort")
        there = [record for record in records if record.get(sort) is not None]
        numeric = all(isinstance(record[sort], int | float) for record in there)
        there.sort(key=lambda each: each[sort] if numeric else shown(each[sort]), reverse=reverse)
        records = there + [record for record in records if record.get(sort) is None]
    return records


def require_value(condition: str, value: str, found: Iterable[Any]) -> None:
    """Refuse a value that nothing among the values `found` of a key can be compared with."""
    kinds = {type(each) for each in found if each is not None}
    if kinds == {bool} and value.casefold() not in ("true", "false"):
        raise UserError(f"--where {condition!r}: {value!r} is neither true nor false")
    number = as_number(value)
    if kinds and kinds <= {int, float} and (number is None or math.isnan(number)):
        raise UserError(
            f"--where {condition!r}: {value!r} is no number; give one such as 3600, 1e-3 or 0.97"
        )


def meets(found: Any, compare: str, value: str) -> bool:
    if found is None:
        return compare == "!="
    number = as_number(value)
    if isinstance(found, int | float) and not isinstance(found, bool) and number is not None:
        return OPERATORS[compare](found, number)
    return OPERATORS[compare](shown(found).casefold(), value.casefold())


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def require_key(key: str, keys: Sequence[str], option: str) -> None:
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys[:8])} …"
        raise UserError(f"{option} {key}: no run has it; {meant}")


def table(records: Sequence[Record], columns: Sequence[str], width: int) -> str:
    """The records for a terminal `width` columns wide; what does not fit is named below."""
    cells = [[key, *(show(key, record.get(key)) for record in records)] for key in columns]
    cells = [column for column in cells if any(cell != "–" for cell in column[1:])]
    widths = [max(map(len, column)) for column in cells]
    fits = 1
    while fits < len(cells) and sum(widths[: fits + 1]) + 2 * fits <= width:
        fits += 1
    lines = []
    for row in zip(*cells[:fits], strict=True):
        first, *others = (cell.ljust(size) for cell, size in zip(row, widths, strict=False))
        lines.append("  ".join([first, *others]).rstrip())
    if fits < len(cells):
        left = ", ".join(column[0] for column in cells[fits:])
        text = f"further columns (choose with --columns): {left}"
        lines.append(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)


def show(key: str, value: Any) -> str:
    known = SHOWN.get(key.partition(".")[0])
    return shown(value) if value is None or known is None else known(value)


def as_csv(records: Sequence[Record], columns: Sequence[str]) -> str:
    """The records with plain numbers, and lists as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        cells = (record.get(key) for key in columns)
        writer.writerow([json.dumps(each) if isinstance(each, list) else each for each in cells])
    return log.printable(text.getvalue())
