"""The plan made before the first job, beside the time, memory and disk that the run took."""

from collections.abc import Callable

from markupsafe import Markup

from nanoeuler.config.stages import BY_NAME
from nanoeuler.evaluation.formats import decimals, duration, percent, size, stage_name
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.rendering import render


def planned(run: Run) -> Markup:
    """A table; nothing for a run without a plan."""
    plan = run.plan
    if plan is None:
        return Markup()
    rows = []
    for name, stage in plan["stages"].items():
        finished = run.stages[name].finished if name in run.stages else None
        seconds = finished["seconds"] if finished else None
        rows.append(row(f"{stage_name(name)}, time", stage["seconds"], seconds, duration))
    for source, bits in plan["bits_per_byte"].items():
        found = row(
            f"bits per byte, {source}", bits["middle"], run.bits_per_byte.get(source), decimals
        )
        found[1] += f" ({decimals(bits['low'])} to {decimals(bits['high'])})"
        rows.append(found)
    peaks = [attempt["peak_bytes"] for rule in BY_NAME for attempt in run.times.get(rule, ())]
    memory = max(peaks, default=None)
    rows.append(row("memory of a training process, at least", plan["memory"], memory, size))
    rows.append(row("disk, data", plan["data_disk"], run.disk.get("data"), size))
    rows.append(row("disk, results", plan["results_disk"], run.disk.get("results"), size))
    return render("planned.html", rows=rows)


def row(
    what: str, plan: float | None, measured: float | None, write: Callable[[float], str]
) -> list[str]:
    """A row of the table. A plan of zero was none: the data was there, or the stage is short."""
    return [
        what,
        write(plan) if plan else "–",
        "–" if measured is None else write(measured),
        percent(measured / plan, 0) if plan and measured is not None else "–",
    ]
