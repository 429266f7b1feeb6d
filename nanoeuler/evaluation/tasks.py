"""Scores of tasks, as lm-evaluation-harness and DCLM define them.

    acc        share of items whose gold choice has the highest log-likelihood
    acc_norm   the same, with each log-likelihood divided by the characters of its choice, so that
               short choices have no advantage
    acc_token  the same, divided by its tokens

Where an item has one continuation, `acc` is the share that greedy decoding would write; LAMBADA has
the word's perplexity beside it. A standard error is that of a mean over n items: their standard
deviation (n − 1) / √n.

Categories count the same each. A group's score is the mean of its tasks' scores,
each centred by its baseline, (score − baseline) / (1 − baseline): so CORE is defined (Li et al.
2024, "DataComp-LM", section 3.5).

What a score is worth, its controls tell: `answers_shuffled` is what the same choices would score if
the right answers were dealt out anew among the items, and `context_swapped` what the model scores
when each item has the context of another one, behind the same shots. `without_calculator` is the
score of a model that has learned to call it, and has to reply without.
"""

import hashlib
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.task_layouts import ASKED, LAST_WORDS, LAYOUTS, QUOTED, REPLIES, Item
from nanoeuler.errors import UserError
from nanoeuler.evaluation.asking import Asked, by_likelihood, by_replies, pairs_of
from nanoeuler.evaluation.scores import CONTROLS
from nanoeuler.inference.api import LanguageModel
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.storage.files import read_json, read_lines
from nanoeuler.storage.integrity import Origin, check_file

KEPT = (*ASKED, "group", "url", "revision", "licence", "sha256", "items_sha256")
"""Keys of a task's manifest that its scores repeat."""

Task = tuple[dict[str, Any], list[Item]]
"""A task's manifest, and its items."""


def read_task(manifest: Path) -> Task:
    """The manifest and the items that `nanoeuler task` wrote. Raises `UserError` when they are
    missing or damaged."""
    described = read_json(manifest)
    if not isinstance(described, dict) or described.get("kind") not in LAYOUTS:
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


T = TypeVar("T")


def select_items(items: Sequence[T], limit: int | None, seed: int) -> list[T]:
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
    settings: Mapping[str, Any],
    seed: int,
    share: Share = in_order,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of one task as JSON values, and a record for each item: the choice, and every
    log-likelihood in nats.

    `task` is what `read_task` read from `manifest`. `settings` is the section `evaluate`, which may
    limit the items that are asked, and want controls. `share`: see `log_likelihoods`.
    """
    described, items = task
    name, kind = described["name"], described["kind"]
    wanted = settings.get("controls", False)
    limits = {each["name"]: each.get("limit") for each in settings.get("tasks", [])}
    limit = limits.get(name, limits.get(described.get("group")))
    began = time.monotonic()
    chosen = select_items(range(len(items)), limit, seed)
    if kind in REPLIES:
        most = settings["max_new_tokens"]
        asked = by_replies(model, described, items, chosen, most, wanted, share)
    else:
        asked = by_likelihood(model, described, items, chosen, window, wanted, seed, share)
    if not asked.items:
        raise UserError(
            f"{manifest}: no item can be asked, since every choice is longer than the window of "
            f"{window} tokens; take a longer model.context"
        )
    skipped: Counter[str] = Counter(described["bad"])
    if asked.too_long:
        skipped["a choice is longer than the window"] = asked.too_long
    seconds = time.monotonic() - began
    scores = summarise_task(kind, asked, described.get("baseline")) | {
        "name": name,
        "skipped": dict(skipped),
        "truncated": asked.truncated,
        "window": window,
        "limit": limit,
    }
    scores |= {key: described.get(key) for key in KEPT if key != "baseline"}
    shown = {
        "items": len(asked.items),
        scores["metric"]: scores["score"],
        "standard_error": scores["standard_error"],
        "baseline": scores["baseline"],
        **{control: each["score"] for control, each in scores["controls"].items()},
        "truncated": asked.truncated,
        "skipped": skipped.total(),
        "items_per_second": len(asked.items) / seconds,
    }
    log.line(name, **shown)
    for control, others in asked.controls.items():
        for record, other in zip(asked.records, others, strict=True):
            record[control] = {key: other[key] for key in other if key not in ("id", "gold")}
    return scores, [{"task": name} | record for record in asked.records]


def summarise_task(kind: str, asked: Asked, baseline: float | None = None) -> dict[str, Any]:
    """The means over all items. A `baseline` is declared; without one that of picking at random is
    taken, and for replies that of the commonest answer."""
    metric, count = QUOTED.get(kind, "acc"), len(asked.items)
    groups, score = mean_by_group(kind, asked.records, metric)
    controls = {name: mean_by_group(kind, each, metric)[1] for name, each in asked.controls.items()}
    chance = 0.0
    if kind in REPLIES:
        chance = max(Counter(item["choices"][0] for item in asked.items).values()) / count
    elif kind not in LAST_WORDS:
        chance = sum(1 / pairs_of(item) for item in asked.items) / count
        if controls:
            controls["answers_shuffled"] = deal_out(asked, metric)
    scores: dict[str, Any] = {
        "kind": kind,
        "items": count,
        "metric": metric,
        **score,
        "metrics": {
            name: mean([record["correct"][name] for record in asked.records])
            for name in asked.records[0]["correct"]
        },
        "groups": groups,
        "controls": controls,
        "chance": chance,
        "baseline": chance if baseline is None else baseline,
    }
    if kind == "lambada":
        scores["perplexity"] = perplexity([record["loglikelihoods"][0] for record in asked.records])
    return scores


def deal_out(asked: Asked, metric: str) -> "Mean":
    """The mean score of the same picks with the right answers of the items in any order, among
    those with as many choices."""
    golds: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for item in asked.items:
        golds[pairs_of(item)][item["gold"]] += 1
    shares = []
    for item, record in zip(asked.items, asked.records, strict=True):
        counts = golds[pairs_of(item)]
        shares.append(counts[record["choice"][metric]] / counts.total())
    return mean(shares)


def mean_by_group(
    kind: str, records: Sequence[Mapping[str, Any]], metric: str
) -> tuple[dict[str, "Mean"], "Mean"]:
    """The mean of each group of items, and that of all; DCLM takes the mean of its categories."""
    by_group: defaultdict[str, list[bool]] = defaultdict(list)
    for record in records:
        if "group" in record:
            by_group[record["group"]].append(record["correct"][metric])
    groups = {group: mean(correct) for group, correct in sorted(by_group.items())}
    if groups and kind != "blimp":
        return groups, mean_of_means(list(groups.values()))
    return groups, mean([record["correct"][metric] for record in records])


def summarise_group(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The score of a group, whose tasks have these scores: the mean of the centred ones."""

    def centred(scores: Sequence[Mapping[str, Any]]) -> Mean:
        rest = [1 - task["baseline"] for task in tasks.values()]
        return mean_of_means(
            [
                {
                    "score": 1 - (1 - each["score"]) / share,
                    "standard_error": None
                    if each["standard_error"] is None
                    else each["standard_error"] / share,
                }
                for each, share in zip(scores, rest, strict=True)
            ]
        )

    controls = {
        control: [task["controls"].get(control) for task in tasks.values()] for control in CONTROLS
    }
    return {
        "kind": "group",
        "tasks": list(tasks),
        "items": sum(task["items"] for task in tasks.values()),
        "truncated": sum(task["truncated"] for task in tasks.values()),
        "metric": "centred",
        **centred(list(tasks.values())),
        "controls": {name: centred(each) for name, each in controls.items() if all(each)},
        "chance": 0.0,
        "baseline": 0.0,
    }


class Mean(TypedDict):
    score: float
    standard_error: float | None  # None for a single value


def mean(values: Sequence[float]) -> Mean:
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"score": float(np.mean(values)), "standard_error": error}


def mean_of_means(means: Sequence[Mean]) -> Mean:
    """Their mean, with the error that follows from theirs."""
    errors = [each["standard_error"] for each in means]
    known = [error for error in errors if error is not None]
    return {
        "score": sum(each["score"] for each in means) / len(means),
        "standard_error": math.hypot(*known) / len(means) if len(known) == len(means) else None,
    }


def perplexity(log_likelihoods: Sequence[float]) -> Mean:
    """exp of the mean negative log-likelihood, with its error to first order."""
    nats = mean([-each for each in log_likelihoods])
    score = math.exp(min(nats["score"], 700.0))
    error = nats["standard_error"]
    return {"score": score, "standard_error": None if error is None else score * error}
