"""The workflow's rules behind the page: what each needed, its jobs and its time."""

from typing import Any

from markupsafe import Markup

from nanoeuler.config.stages import BY_NAME
from nanoeuler.evaluation.formats import duration, with_commas
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.rendering import render

REPORT = "write_report"


def pipeline(run: Run) -> Markup:
    """A row for each rule, in an order in which they can run; nothing for a run without times and
    without a workflow."""
    rules = (run.pipeline or {}).get("rules", {})
    needed = behind(REPORT, rules)
    names = [rule for rule in rules if rule in needed]
    names += [rule for rule in run.times if rule not in needed and rule != REPORT]
    if not names:
        return Markup()
    total = sum(run.rule_seconds.values())
    return render("pipeline.html", rules=[row(run, rule) for rule in names], total=total)


def behind(rule: str, rules: dict[str, Any]) -> set[str]:
    """`rule` and everything that it needs, near or far."""
    found: set[str] = set()
    waiting = [rule]
    while waiting:
        rule = waiting.pop()
        if rule in rules and rule not in found:
            found.add(rule)
            waiting += rules[rule]["needs"]
    return found


def row(run: Run, rule: str) -> dict[str, Any]:
    """A rule without a time was finished by an earlier run, or is the one that writes the page."""
    known = (run.pipeline or {}).get("rules", {}).get(rule, {"needs": [], "jobs": 0})
    attempts = run.times.get(rule, [])
    finished = len({attempt["job"] for attempt in attempts})
    jobs = with_commas(known["jobs"] or finished)
    if len(attempts) > finished:
        jobs += f" ({with_commas(len(attempts))} attempts)"
    seconds = None if rule == REPORT else run.rule_seconds.get(rule)
    unknown = "this page" if rule == REPORT else "earlier"
    return {
        "name": rule,
        "needs": known["needs"],
        "jobs": jobs,
        "seconds": seconds,
        "time": unknown if seconds is None else duration(seconds),
        "trains": rule in BY_NAME,
    }
