"""What stands behind the numbers: data, tokenizer, gradient check, licences, provenance and configuration."""

import json
from typing import Any

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.markup import (
    Markup,
    count,
    decimals,
    element,
    enumeration,
    join,
    scientific,
    section,
    short_count,
    size,
    table,
)
from nanoeuler.tokenizer import Tokenizer

LONGEST_TOKENS = 24

SPLITS = {"train": "", "validation": ", held out"}


# ---- data


def data(run: Run) -> Markup:
    return section("Data", corpus_table(run), tokenizer_facts(run))


def corpus_table(run: Run) -> Markup:
    if run.corpus is None:
        return Markup()
    rows = []
    for source, parts in run.corpus["sources"].items():
        for split in SPLITS:
            tokens = token_counts(run, split, source)
            ratio = decimals(tokens["bytes"] / tokens["tokens"], 2) if tokens.get("tokens") else "–"
            amounts = [
                count(parts[split]["documents"]),
                size(parts[split]["bytes"]),
                short_count(tokens["tokens"]) if tokens else "–",
                ratio,
            ]
            rows.append([source + SPLITS[split], *amounts])
    for split in SPLITS if run.instructions else ():
        rows.append(
            [
                f"{run.instructions['name']} instructions{SPLITS[split]}",
                count(run.instructions[split]["records"]),
                "–",
                "–",
                "–",
            ]
        )
    for split in SPLITS if run.preferences else ():
        rows.append(
            [
                f"{run.preferences['name']} preferences{SPLITS[split]}",
                count(run.preferences[split]["pairs"]),
                "–",
                "–",
                "–",
            ]
        )
    return table(["", "documents", "bytes", "tokens", "bytes / token"], rows)


def token_counts(run: Run, split: str, source: str) -> dict[str, Any]:
    return (run.tokens or {}).get("splits", {}).get(split, {}).get(source, {})


def tokenizer_facts(run: Run) -> Markup:
    """Size of the vocabulary and its longest tokens."""
    if run.tokenizer is None:
        return Markup()
    tokenizer = Tokenizer.load(run.tokenizer)
    tokens = sorted(
        (
            tokenizer.token_bytes(id)
            for id in range(tokenizer.vocab_size)
            if not tokenizer.is_special(id)
        ),
        key=lambda token: (-len(token), token),
    )
    longest = (
        element("code", token.decode("utf-8", "replace").replace(" ", "␣").replace("\n", "⏎"))
        for token in tokens[:LONGEST_TOKENS]
    )
    facts = (
        f"Byte-level BPE of {count(tokenizer.vocab_size)} tokens: {len(tokenizer.special_ids)} reserved, the 256 bytes, "
        f"{count(len(tokens) - 256)} learned merges. The longest:"
    )
    return element(
        "div",
        element("h3", "Tokenizer"),
        element("p", facts),
        element("p", join(longest, " "), class_="tokens"),
    )


# ---- gradients


def gradients(run: Run) -> Markup:
    """The gradient check: a line per case, and every tensor behind a fold."""
    if run.gradients is None:
        return Markup()
    tensors, tolerance = run.gradients["rows"], run.gradients["tolerance"]
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in tensors:
        cases.setdefault(row["case"], []).append(row)
    summary = [
        [
            case,
            count(len(rows)),
            count(sum(row["elements"] for row in rows)),
            scientific(largest(rows)),
            passed(rows),
        ]
        for case, rows in cases.items()
    ]
    every = [
        [
            row["case"],
            row["tensor"],
            count(row["elements"]),
            scientific(row["error"]),
            scientific(row["worst"]),
        ]
        for row in tensors
    ]
    note = (
        "Every op and every parameter tensor of small models against central differences of 4th order in float64. "
        f"The error is ‖a − b‖ / ‖b‖ per tensor and may reach {scientific(tolerance)}; the worst single element is for information."
    )
    fold = element(
        "details",
        element("summary", f"All {len(tensors)} tensors"),
        table(["case", "tensor", "elements", "error", "worst element"], every, numeric_from=2),
    )
    return section(
        "Gradient check",
        element("p", note, class_="note"),
        table(["case", "tensors", "elements", "error", ""], summary),
        fold,
    )


def largest(rows: list[dict[str, Any]]) -> float | None:
    """The largest error; None where one of them is no number."""
    errors = [row["error"] for row in rows]
    return None if None in errors else max(errors)


def passed(rows: list[dict[str, Any]]) -> Markup:
    agree = all(row["ok"] for row in rows)
    return element("span", "✓" if agree else "✗ wrong", class_="right" if agree else "wrong")


# ---- licences


def licences(run: Run) -> Markup:
    used = used_licences(run)
    if not used:
        return Markup()
    listed = table(["data", "licence"], list(used.items()), numeric_from=9, class_="pairs")
    return section(
        "Licences of the data", listed, element("p", element("strong", licence_verdict(used)))
    )


def licence_verdict(used: dict[str, str]) -> str:
    """What the licences mean for whoever passes the model on."""
    restricted = [name for name, licence in used.items() if is_non_commercial(licence)]
    if restricted:
        return f"A model trained on {enumeration(restricted)} is for non-commercial use only."
    if any("unknown" in licence.split("; ") for licence in used.values()):
        return "Where a licence is unknown, find out before you pass the model on."
    return "None of these licences forbids commercial use."


def used_licences(run: Run) -> dict[str, str]:
    """Source → licence, for everything that the models of this run learned from."""
    used: dict[str, str] = {}
    for source, parts in (run.corpus or {}).get("sources", {}).items():
        used[source] = parts.get("licence") or "unknown"
    for stage in run.stages.values():
        learned = (stage.evaluation or {}).get("model_info") or {}
        for kind in ("instructions", "preferences"):
            if trained_on := learned.get(kind):
                used[f"{trained_on.get('name') or 'unnamed'} {kind}"] = (
                    trained_on.get("licence") or "unknown"
                )
    return used


def is_non_commercial(licence: str) -> bool:
    words = licence.casefold().replace("-", " ").split()
    return "nc" in words or "noncommercial" in words or ("non" in words and "commercial" in words)


# ---- provenance


def provenance(run: Run) -> Markup:
    """Which code, software and machine made each stage's numbers: what all share, and what differs."""
    records: dict[str, dict[str, str]] = {}
    for name, stage in run.stages.items():
        for work, record in (
            ("trained", stage.header.get("provenance")),
            ("evaluated", (stage.evaluation or {}).get("provenance")),
        ):
            if record:
                records[f"{name}, {work}"] = describe(record)
    keys = list(dict.fromkeys(key for record in records.values() for key in record))
    differing = [key for key in keys if len({record.get(key) for record in records.values()}) > 1]
    shared = next(iter(records.values()), {})
    together = table(
        ["", "all stages"],
        [[key, shared[key]] for key in keys if key not in differing],
        numeric_from=9,
        class_="pairs",
    )
    rows = (
        [[name, *(record.get(key, "–") for key in differing)] for name, record in records.items()]
        if differing
        else []
    )
    apart = table(["", *differing], rows, numeric_from=9, class_="pairs")
    prints = {
        "corpus": (run.corpus or {}).get("fingerprint"),
        "tokens": (run.tokens or {}).get("fingerprint"),
        "tokenizer": (run.tokens or {}).get("tokenizer"),
        **{name: stage.header.get("fingerprint") for name, stage in run.stages.items()},
    }
    fingerprints = table(
        ["fingerprint of", "SHA-256"],
        [[name, element("code", value[:16] + "…")] for name, value in prints.items() if value],
        numeric_from=9,
        class_="pairs",
    )
    configuration = json.dumps(
        {key: value for key, value in run.config.items() if key != "sources"},
        indent=1,
        ensure_ascii=False,
    )
    fold = element(
        "details", element("summary", "Configuration, as resolved"), element("pre", configuration)
    )
    return section("Provenance", together, apart, fingerprints, fold)


def describe(record: dict[str, Any]) -> dict[str, str]:
    commit = (record.get("commit") or "not a git checkout")[:12] + (
        " (with local changes)" if record.get("dirty") else ""
    )
    packages = ", ".join(
        f"{name} {version}" for name, version in (record.get("packages") or {}).items()
    )
    shown = {
        "nanoeuler": record.get("nanoeuler"),
        "commit": commit if record.get("commit") else "not a git checkout",
        "date": (record.get("date") or "").replace("T", " ").replace("Z", " UTC"),
        "device": record.get("device"),
        "cores": record.get("cores"),
        "python": record.get("python"),
        "packages": packages,
        "platform": record.get("platform"),
    }
    return {key: str(value) for key, value in shown.items() if value not in (None, "")}
