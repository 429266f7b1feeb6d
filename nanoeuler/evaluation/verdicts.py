"""The verdicts of an experiment, as `nanoeuler experiment` keeps them beside its trials.

results/experiments/NAME/verdicts.json     what `nanoeuler experiment --json` prints
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from nanoeuler.errors import UserError
from nanoeuler.evaluation.scores import Json, Row
from nanoeuler.storage.integrity import Origin, read_sealed

QUESTION, VERDICTS = "experiment.json", "verdicts.json"
HEADER = ["", "bits/byte", "difference", "p", "seeds", "verdict"]
MOST_TRIALS = 10
"""On a page, beside the base's: as many lines as can be told apart in a chart."""


def read_verdicts(folder: Path) -> Json | None:
    """The verdicts of the experiment in `folder`; None where it holds none."""
    path = folder / VERDICTS
    if not path.is_file():
        return None
    again = "run the same experiment again, which writes it from its trials"
    origin = Origin("`nanoeuler experiment`", again)
    return read_sealed(path, origin, "the verdicts of an experiment", "arms", again)


def refuse_experiments(folders: Iterable[Path]) -> None:
    """Raise `UserError` for the folder of an experiment among those that are taken for runs."""
    for folder in folders:
        if (folder / VERDICTS).is_file():
            raise UserError(f"{folder}: an experiment; give it alone: nanoeuler compare {folder}")
        if (folder / QUESTION).is_file():
            raise UserError(
                f"{folder}: an experiment without verdicts yet; its command, given again, resumes "
                f"it, and `nanoeuler runs {folder}` lists its trials"
            )


def verdict_rows(told: Json) -> list[Row]:
    """A row for each arm of an experiment under `HEADER`, the base first. Keys of `pretrain` go
    without its name."""
    base, *changes = told["arms"]
    return [
        ["base", mean_of(base), "", "", str(len(base["bits_per_byte"])), ""],
        *(
            [
                arm["title"].replace("pretrain.", ""),
                mean_of(arm),
                difference(arm),
                "–" if arm["p"] is None else f"{arm['p']:.2g}",
                str(arm["seeds"]),
                worded(arm),
            ]
            for arm in changes
        ),
    ]


def verdict_table(told: Json, width: int) -> str:
    """The rows for a terminal `width` columns wide; a change that is too long for its column has a
    line of its own."""
    rows = [HEADER, *verdict_rows(told)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = max(12, min(widths[0], width - sum(widths[1:]) - 2 * len(widths[1:])))
    lines = []
    for change, *cells in rows:
        if len(change) > widths[0]:
            lines.append(change)
            change = ""
        padded = [cell.ljust(size) for cell, size in zip([change, *cells], widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def trials_shown(told: Json, folder: Path) -> list[Path]:
    """The trials that a page shows: those of the base and of the best changes with the first seed
    that was trained. `folder` is the experiment's."""
    base, *changes = (arm for arm in told["arms"] if arm["bits_per_byte"])
    best = sorted(changes, key=lambda arm: fmean(arm["bits_per_byte"]))[:MOST_TRIALS]
    return [folder / f"{arm['name']}-seed{told['seeds'][0]}" for arm in (base, *best)]


def mean_of(arm: Json) -> str:
    return f"{fmean(arm['bits_per_byte']):.4f}" if arm["bits_per_byte"] else "–"


def difference(arm: Json) -> str:
    if arm["standard_error"] is None:
        return "–"
    return f"{arm['difference']:+.4f} ± {arm['standard_error']:.4f}"


def worded(arm: Json) -> str:
    needed = arm["seeds_to_decide"]
    decided = arm["verdict"] == "failed" or not needed
    return arm["verdict"] if decided else f"{arm['verdict']} ({needed} seeds would decide)"
