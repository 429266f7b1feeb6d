"""Data, tokenizer, gradient check, licences, plan, pipeline and provenance."""

import json
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from nanoeuler.config.stages import BY_NAME, KINDS
from nanoeuler.corpus.document_sources import OwnText
from nanoeuler.evaluation.formats import (
    decimals,
    duration,
    enumeration,
    joules,
    percent,
    scientific,
    short_count,
    size,
    stage_name,
    with_commas,
)
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.model.companions import is_non_commercial, learned_from
from nanoeuler.system.energy import ENERGIES
from nanoeuler.tokenizer import Tokenizer

LONGEST_TOKENS = 24
REPORT = "write_report"

SPLITS = {"train": "", "validation": ", held out"}


def data(run: Run) -> Markup:
    rows, tokenizer = data_rows(run), describe_tokenizer(run)
    return render("data.html", rows=rows, tokenizer=tokenizer) if rows or tokenizer else Markup()


def data_rows(run: Run) -> list[list[str]]:
    if run.corpus is None:
        return []
    rows = []
    splits = (run.tokens or {}).get("splits", {})
    for source, parts in run.sources.items():
        for split, suffix in SPLITS.items():
            tokens = splits.get(split, {}).get(source, {})
            ratio = decimals(tokens["bytes"] / tokens["tokens"], 2) if tokens.get("tokens") else "–"
            rows.append(
                [
                    source + suffix,
                    with_commas(parts[split]["documents"]),
                    size(parts[split]["bytes"]),
                    short_count(tokens["tokens"]) if tokens else "–",
                    ratio,
                ]
            )
    for kind, manifest in run.records.items():
        unit = KINDS[kind].unit
        for split, suffix in SPLITS.items():
            title = f"{manifest['name']} {kind}{suffix}"
            rows.append([title, with_commas(manifest[split][f"{unit}s"]), "–", "–", "–"])
    return rows


def describe_tokenizer(run: Run) -> Json | None:
    """Size of the vocabulary and its longest tokens."""
    if run.tokenizer is None:
        return None
    tokenizer = Tokenizer.load(run.tokenizer)
    ids = [id for id in range(tokenizer.vocab_size) if not tokenizer.is_special(id)]
    tokens = sorted(map(tokenizer.token_bytes, ids), key=lambda token: (-len(token), token))
    longest = [token.decode("utf-8", "replace") for token in tokens[:LONGEST_TOKENS]]
    return {
        "vocab_size": tokenizer.vocab_size,
        "reserved": len(tokenizer.special_ids),
        "merges": len(tokens) - 256,
        "longest": [token.replace(" ", "␣").replace("\n", "⏎") for token in longest],
    }


def gradients(run: Run) -> Markup:
    """The gradient check: a line per case, and every tensor behind a fold."""
    if run.gradients is None:
        return Markup()
    engine = run.gradients["engine"]
    tensors = run.gradients["rows"] + engine["rows"]
    by_case: dict[str, list[Json]] = {}
    for row in tensors:
        by_case.setdefault(row["case"], []).append(row)
    cases = [
        {
            "name": case,
            "tensors": len(rows),
            "elements": sum(row["elements"] for row in rows),
            "error": largest(rows),
            "passed": all(row["ok"] for row in rows),
        }
        for case, rows in by_case.items()
    ]
    rows = [
        [
            row["case"],
            row["tensor"],
            with_commas(row["elements"]),
            scientific(row["error"]),
            scientific(row["worst"]),
        ]
        for row in tensors
    ]
    tolerance = run.gradients["tolerance"]
    return render("gradients.html", tolerance=tolerance, engine=engine, cases=cases, rows=rows)


def largest(rows: list[Json]) -> float | None:
    """The largest error; None where one of them is no number."""
    errors = [row["error"] for row in rows]
    return None if None in errors else max(errors)


def licences(run: Run) -> Markup:
    used = used_licences(run)
    if not used:
        return Markup()
    return render("licences.html", rows=list(used.items()), verdict=licence_verdict(used))


def licence_verdict(used: dict[str, str]) -> str:
    """Obligations of whoever passes the model on, from the licences."""
    restricted = [name for name, licence in used.items() if is_non_commercial(licence)]
    if restricted:
        return f"A model trained on {enumeration(restricted)} is for non-commercial use only."
    if any("unknown" in licence.split("; ") for licence in used.values()):
        return "Where a licence is unknown, find out before you pass the model on."
    if OwnText.licence in used.values():
        return "Whether a model of your own text may be passed on depends on whose text it is."
    return "None of these licences forbids commercial use."


def used_licences(run: Run) -> dict[str, str]:
    """Source → licence, for everything that the models of this run learned from."""
    used = {name: source.get("licence") or "unknown" for name, source in run.sources.items()}
    made_from = [evaluation.get("model_info") or {} for evaluation in run.evaluations.values()]
    for info in made_from:
        used |= learned_from(info)
    starts = [
        section.get("init_from") for section in run.config.values() if isinstance(section, dict)
    ]
    if not any("imported" in info for info in made_from):
        used |= {f"{start} model": "unknown" for start in starts if start}
    return used


def planned(run: Run) -> Markup:
    """A table; nothing for a run without a plan."""
    plan = run.plan
    if plan is None:
        return Markup()
    rows = []
    for name, stage in plan["stages"].items():
        finished = (run.stages[name].finished if name in run.stages else None) or {}
        title, seconds = stage_name(name), finished.get("seconds")
        rows.append(planned_row(f"{title}, time", stage["seconds"], seconds, duration))
        for kind, amount in stage.get("joules", {}).items():
            what = f"{title}, energy of the {ENERGIES[kind]}"
            rows.append(planned_row(what, amount, finished.get(kind), joules))
    for source, bits in plan["bits_per_byte"].items():
        name, measured = f"bits per byte, {source}", run.bits_per_byte.get(source)
        found = planned_row(name, bits["middle"], measured, decimals)
        found[1] += f" ({decimals(bits['low'])} to {decimals(bits['high'])})"
        rows.append(found)
    peaks = [attempt["peak_bytes"] for rule in BY_NAME for attempt in run.times.get(rule, ())]
    memory = max(peaks, default=None)
    rows.append(planned_row("memory of a training process, at least", plan["memory"], memory, size))
    rows.append(planned_row("disk, data", plan["data_disk"], run.disk.get("data"), size))
    rows.append(planned_row("disk, results", plan["results_disk"], run.disk.get("results"), size))
    return render("planned.html", rows=rows)


def planned_row(
    what: str, plan: float | None, measured: float | None, write: Callable[[float], str]
) -> list[str]:
    """A row of the table. A plan of zero was none: the data was there, or the stage is short."""
    return [
        what,
        write(plan) if plan else "–",
        "–" if measured is None else write(measured),
        percent(measured / plan, 0) if plan and measured is not None else "–",
    ]


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
    return render("pipeline.html", rules=[rule_row(run, rule) for rule in names], total=total)


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


def rule_row(run: Run, rule: str) -> dict[str, Any]:
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


def provenance(run: Run) -> Markup:
    """The code, software and machine behind each stage: what all share, and what differs."""
    records: dict[str, dict[str, str]] = {}
    for name, stage in run.stages.items():
        if trained := stage.header.get("provenance"):
            records[f"{name}, trained"] = describe(trained)
        if evaluated := (stage.evaluation or {}).get("provenance"):
            records[f"{name}, evaluated"] = describe(evaluated)
    keys = dict.fromkeys(key for record in records.values() for key in record)
    differing = [key for key in keys if len({record.get(key) for record in records.values()}) > 1]
    first = next(iter(records.values()), {})
    tokens = run.tokens or {}
    fingerprints = {
        "corpus": (run.corpus or {}).get("fingerprint"),
        "tokens": tokens.get("fingerprint"),
        "tokenizer": tokens.get("tokenizer"),
        **{name: stage.header.get("fingerprint") for name, stage in run.stages.items()},
    }
    settings = {key: value for key, value in run.config.items() if key != "sources"}
    return render(
        "provenance.html",
        shared=[[key, first[key]] for key in keys if key not in differing],
        differing=differing,
        records=[
            [name, *(record.get(key, "–") for key in differing)] for name, record in records.items()
        ],
        fingerprints={name: value for name, value in fingerprints.items() if value},
        configuration=json.dumps(settings, indent=1, ensure_ascii=False),
    )


def describe(record: Json) -> dict[str, str]:
    commit = "not a git checkout"
    if record.get("commit"):
        commit = record["commit"][:12] + (" (with local changes)" if record.get("dirty") else "")
    packages = record.get("packages") or {}
    shown = {
        "nanoeuler": record.get("nanoeuler"),
        "commit": commit,
        "date": (record.get("date") or "").replace("T", " ").replace("Z", " UTC"),
        "device": record.get("device"),
        "cores": record.get("cores"),
        "python": record.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "platform": record.get("platform"),
    }
    return {key: str(value) for key, value in shown.items() if value not in (None, "")}
