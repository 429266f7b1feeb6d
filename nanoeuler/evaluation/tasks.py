"""Scores of multiple-choice tasks, as lm-evaluation-harness defines them.

    acc       share of items whose gold choice has the highest log-likelihood
    acc_norm  the same, with each log-likelihood divided by the characters of its choice, so that
              short choices have no advantage

For LAMBADA `acc` is the share of last words that greedy decoding would write, with the word's
perplexity beside it. A standard error is that of a mean over n items: their standard deviation
(n − 1) / √n. The baseline is the score of picking at random.
"""

import hashlib
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.evaluation.continuations import Pair, encode, log_likelihoods
from nanoeuler.inference.api import LanguageModel
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.storage.files import read_json, read_lines
from nanoeuler.storage.integrity import Origin, check_file

QUOTED = {
    "hellaswag": "acc_norm",
    "arc_easy": "acc",
    "arc_challenge": "acc_norm",
    "piqa": "acc_norm",
    "winogrande": "acc",
    "blimp": "acc",
    "lambada": "acc",
}
"""Kind of task → the score that is usually quoted."""

SPACE = " "
"""Between a context and a choice. A text without a context starts with it, as in
lm-evaluation-harness."""

KEPT = ("url", "revision", "licence", "sha256", "items_sha256")
"""Keys of a task's manifest that its scores repeat."""

Item = Mapping[str, Any]
Task = tuple[dict[str, Any], list[Item]]
"""A task's manifest, and its items."""


def read_task(manifest: Path) -> Task:
    """The manifest and the items that `nanoeuler task` wrote. Raises `UserError` when they are
    missing or damaged."""
    described = read_json(manifest)
    if not isinstance(described, dict) or described.get("kind") not in QUOTED:
        raise UserError(
            f"{manifest}: not the manifest of a task; "
            "give the manifest.json that `nanoeuler task` writes"
        )
    path = manifest.with_name("items.jsonl")
    origin = Origin("`nanoeuler task`", f"delete {manifest.parent} and run it again")
    check_file(path, described.get("items_sha256"), origin)
    try:
        items = [json.loads(line) for line in read_lines(path) if line.strip()]
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: missing or damaged ({error}); "
            f"delete {manifest.parent} and run the stage that writes it again"
        ) from error
    return described, items


def select_items(items: Sequence[Item], limit: int | None, seed: int) -> list[Item]:
    """All items, or `limit` of them in their order: those whose index has the lowest hash, so that
    every model is asked the same ones."""
    if limit is None or limit >= len(items):
        return list(items)

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed} {index}".encode()).digest()

    chosen = sorted(range(len(items)), key=rank)[:limit]
    return [items[index] for index in sorted(chosen)]


def score_task(
    model: LanguageModel,
    manifest: Path,
    task: Task,
    window: int,
    limits: Mapping[str, int | None],
    seed: int,
    share: Share = in_order,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of one task as JSON values, and a record for each item: the choice, and every
    log-likelihood in nats.

    `task` is what `read_task` read from `manifest`. `limits` has the number of items that are
    asked, by the task's name; without one all are. `share`: see `log_likelihoods`.
    """
    described, items = task
    name, kind = described["name"], described["kind"]
    limit = limits.get(name)
    began = time.monotonic()
    asked: list[Item] = []
    sequences: list[Pair] = []
    skipped: Counter[str] = Counter(described["bad"])
    truncated = 0
    for item in select_items(items, limit, seed):
        pairs = [
            encode(model.tokenizer, context, SPACE + choice)
            for context in item["contexts"]
            for choice in item["choices"]
        ]
        if max(pair.scored for pair in pairs) > window:
            skipped["a choice is longer than the window"] += 1
            continue
        truncated += any(pair.inputs(window) < len(pair.ids) - 1 for pair in pairs)
        asked.append(item)
        sequences += pairs
    if not asked:
        raise UserError(
            f"{manifest}: no item can be asked, since every choice is longer than the window of "
            f"{window} tokens; take a longer model.context"
        )
    with log.Progress(name, len(sequences), "choices") as progress:
        sums_S, greedy_S = log_likelihoods(
            model.transformer, sequences, window, model.tokenizer.end_id, progress.update, share
        )
    records, first = [], 0
    for item in asked:
        sums_C = sums_S[first : first + pairs_of(item)]
        records.append({"task": name} | judge(kind, item, sums_C, bool(greedy_S[first])))
        first += pairs_of(item)
    seconds = time.monotonic() - began
    scores = summarise_task(kind, asked, records) | {
        "name": name,
        "skipped": dict(skipped),
        "truncated": truncated,
        "window": window,
        "limit": limit,
    }
    scores |= {key: described.get(key) for key in KEPT}
    shown = {
        "items": len(asked),
        scores["metric"]: scores["score"],
        "standard_error": scores["standard_error"],
        "baseline": scores["baseline"],
        "truncated": truncated,
        "skipped": skipped.total(),
        "items_per_second": len(asked) / seconds,
    }
    log.line(name, **shown)
    return scores, records


def pairs_of(item: Item) -> int:
    """The number of its (context, choice) pairs."""
    return len(item["contexts"]) * len(item["choices"])


def judge(kind: str, item: Item, sums_C: np.ndarray, greedy: bool) -> dict[str, Any]:
    """The model's choice for one item, whose pairs have the log-likelihoods `sums_C`."""
    record: dict[str, Any] = {
        "id": item["id"],
        "gold": item["gold"],
        "loglikelihoods": sums_C.tolist(),
    }
    if "group" in item:
        record["group"] = item["group"]
    if kind == "lambada":
        return record | {"greedy": greedy, "correct": {"acc": greedy}}
    characters_C = np.array([*map(len, item["choices"])] * len(item["contexts"]), np.float64)
    choice = {"acc": int(sums_C.argmax()), "acc_norm": int((sums_C / characters_C).argmax())}
    correct = {metric: index == item["gold"] for metric, index in choice.items()}
    return record | {"choice": choice, "correct": correct}


def summarise_task(
    kind: str, items: Sequence[Item], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The means over `items`, whose records are `records`."""
    metric = QUOTED[kind]
    metrics = {
        name: mean([record["correct"][name] for record in records])
        for name in records[0]["correct"]
    }
    by_group: defaultdict[str, list[bool]] = defaultdict(list)
    for record in records:
        if "group" in record:
            by_group[record["group"]].append(record["correct"][metric])
    scores: dict[str, Any] = {
        "kind": kind,
        "items": len(items),
        "metric": metric,
        **metrics[metric],
        "metrics": metrics,
        "groups": {group: mean(correct) for group, correct in sorted(by_group.items())},
    }
    if kind == "lambada":
        scores["perplexity"] = perplexity([record["loglikelihoods"][0] for record in records])
        return scores | {"baseline": 0.0}
    return scores | {"baseline": sum(1 / pairs_of(item) for item in items) / len(items)}


class Mean(TypedDict):
    score: float
    standard_error: float | None  # None for a single value


def mean(values: Sequence[float]) -> Mean:
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"score": float(np.mean(values)), "standard_error": error}


def perplexity(log_likelihoods: Sequence[float]) -> Mean:
    """exp of the mean negative log-likelihood, with its error to first order."""
    nats = mean([-each for each in log_likelihoods])
    score = math.exp(min(nats["score"], 700.0))
    error = nats["standard_error"]
    return {"score": score, "standard_error": None if error is None else score * error}
