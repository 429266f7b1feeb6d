"""Data, tokenizer, gradient check, licences and provenance."""

import json

from markupsafe import Markup

from nanoeuler.config.stages import KINDS
from nanoeuler.evaluation.formats import (
    decimals,
    enumeration,
    scientific,
    short_count,
    size,
    with_commas,
)
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.model.licences import is_non_commercial
from nanoeuler.tokenizer import Tokenizer

LONGEST_TOKENS = 24

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
    return "None of these licences forbids commercial use."


def used_licences(run: Run) -> dict[str, str]:
    """Source → licence, for everything that the models of this run learned from."""
    used = {name: source.get("licence") or "unknown" for name, source in run.sources.items()}
    for evaluation in run.evaluations.values():
        learned = evaluation.get("model_info") or {}
        for kind in KINDS:
            if material := learned.get(kind):
                name = f"{material.get('name') or 'unnamed'} {kind}"
                used[name] = material.get("licence") or "unknown"
    return used


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
