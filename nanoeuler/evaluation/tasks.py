"""Scores of tasks, as lm-evaluation-harness and DCLM define them.

    acc        share of items whose gold choice has the highest log-likelihood
    acc_norm   the same, with each log-likelihood divided by the characters of its choice, so that
               short choices have no advantage
    acc_token  the same, divided by its tokens

Where an item has one continuation, `acc` is the share that greedy decoding would write; LAMBADA has
the word's perplexity beside it. A standard error is that of a mean over n items: their standard
deviation (n − 1) / √n.

`shots` other items stand before each, answered right, one a line, drawn by the seed and the item's
place in the file. Categories count the same each. A group's score is the mean of its tasks' scores,
each centred by its baseline, (score − baseline) / (1 − baseline): so CORE is defined (Li et al.
2024, "DataComp-LM", section 3.5).

What a score is worth, its controls tell: `answers_shuffled` is what the same choices would score if
the right answers were dealt out anew among the items, and `context_swapped` what the model scores
when each item has the context of another one, behind the same shots.
"""

import hashlib
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.task_layouts import ASKED, LAST_WORDS, Item, peers
from nanoeuler.errors import UserError
from nanoeuler.evaluation.continuations import Pair, encode, log_likelihoods
from nanoeuler.inference.api import LanguageModel
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.storage.files import read_json, read_lines
from nanoeuler.storage.integrity import Origin, check_file
from nanoeuler.tokenizer import Tokenizer

QUOTED = {
    "hellaswag": "acc_norm",
    "arc_easy": "acc",
    "arc_challenge": "acc_norm",
    "piqa": "acc_norm",
    "winogrande": "acc",
    "blimp": "acc",
    "lambada": "acc",
    "multiple_choice": "acc_token",
    "schema": "acc_token",
    "language_modelling": "acc",
}
"""Kind of task → the score that is usually quoted."""

SPACE = " "
"""Between a context and a choice. A text without a context starts with it, as in
lm-evaluation-harness."""

KEPT = (*ASKED, "group", "url", "revision", "licence", "sha256", "items_sha256")
CONTROLS = {"context_swapped": "another item's context", "answers_shuffled": "answers shuffled"}
"""Name of a control → what reports call it."""
"""Keys of a task's manifest that its scores repeat."""

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


def draw(others: Sequence[int], own: int, count: int, seed: int) -> list[int]:
    """`count` of the indices `others` without `own`, or all of them if they are fewer. Another item
    or seed draws others."""
    count = min(count, len(others) - 1)
    roll = random.Random(seed << 32 | own).random  # the one sequence that Python guarantees
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        index = others[int(roll() * len(others))]
        if index != own:
            drawn[index] = None
    return list(drawn)


def answered(item: Item) -> str:
    """An item with its right answer, as a line of examples."""
    gold, contexts, choices = item["gold"], item["contexts"], item["choices"]
    context = contexts[gold if len(contexts) > 1 else 0]
    choice = choices[gold if len(choices) > 1 else 0]
    return f"{context}{SPACE}{choice}\n"


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
    shots, swap = described.get("shots") or 0, settings.get("controls", False)
    limits = {each["name"]: each.get("limit") for each in settings.get("tasks", [])}
    limit = limits.get(name, limits.get(described.get("group")))
    began = time.monotonic()
    asked: list[Item] = []
    sequences: list[Pair] = []
    swapped: list[Pair] = []
    skipped: Counter[str] = Counter(described["bad"])
    truncated, alike = 0, peers(items)
    for index, item in select_items(list(enumerate(items)), limit, seed):
        *_, other = drawn = [index, *draw(alike[index], index, shots + 1, seed)]
        examples = "".join(answered(items[each]) for each in drawn[1 : shots + 1])
        pairs = encode_item(model.tokenizer, examples, item["contexts"], item["choices"])
        if max(pair.scored for pair in pairs) > window:
            skipped["a choice is longer than the window"] += 1
            continue
        truncated += any(pair.inputs(window) < len(pair.ids) - 1 for pair in pairs)
        asked.append(item)
        sequences += pairs
        if swap:
            contexts = items[other]["contexts"]
            swapped += encode_item(model.tokenizer, examples, contexts, item["choices"])
    if not asked:
        raise UserError(
            f"{manifest}: no item can be asked, since every choice is longer than the window of "
            f"{window} tokens; take a longer model.context"
        )
    swap = swap and any(any(item["contexts"]) for item in asked)

    def ask(title: str, sequences: Sequence[Pair]) -> list[dict[str, Any]]:
        with log.Progress(title, len(sequences), "choices") as progress:
            sums_S, greedy_S = log_likelihoods(
                model.transformer, sequences, window, model.tokenizer.end_id, progress.update, share
            )
        tokens_S = np.array([pair.scored for pair in sequences])
        records, first = [], 0
        for item in asked:
            own = slice(first, first + pairs_of(item))
            records.append(judge(kind, item, sums_S[own], tokens_S[own], bool(greedy_S[first])))
            first = own.stop
        return records

    records = ask(name, sequences)
    controls = {"context_swapped": ask(f"{name}, swapped", swapped)} if swap else None
    seconds = time.monotonic() - began
    scores = summarise_task(kind, asked, records, described.get("baseline"), controls) | {
        "name": name,
        "skipped": dict(skipped),
        "truncated": truncated,
        "window": window,
        "limit": limit,
    }
    scores |= {key: described.get(key) for key in KEPT if key != "baseline"}
    shown = {
        "items": len(asked),
        scores["metric"]: scores["score"],
        "standard_error": scores["standard_error"],
        "baseline": scores["baseline"],
        **{control: each["score"] for control, each in scores["controls"].items()},
        "truncated": truncated,
        "skipped": skipped.total(),
        "items_per_second": len(asked) / seconds,
    }
    log.line(name, **shown)
    for control, others in (controls or {}).items():
        for record, each in zip(records, others, strict=True):
            record[control] = {key: each[key] for key in ("loglikelihoods", "correct")}
    return scores, [{"task": name} | record for record in records]


def encode_item(
    tokenizer: Tokenizer, examples: str, contexts: Sequence[str], choices: Sequence[str]
) -> list[Pair]:
    return [
        encode(tokenizer, examples + context, SPACE + choice)
        for context in contexts
        for choice in choices
    ]


def pairs_of(item: Item) -> int:
    """The number of its (context, choice) pairs."""
    return len(item["contexts"]) * len(item["choices"])


def judge(
    kind: str, item: Item, sums_C: np.ndarray, tokens_C: np.ndarray, greedy: bool
) -> dict[str, Any]:
    """The model's choice for one item, whose pairs have the log-likelihoods `sums_C` and
    `tokens_C` tokens behind their contexts."""
    record: dict[str, Any] = {
        "id": item["id"],
        "gold": item["gold"],
        "loglikelihoods": sums_C.tolist(),
    }
    if "group" in item:
        record["group"] = item["group"]
    if kind in LAST_WORDS:
        return record | {"greedy": greedy, "correct": {"acc": greedy}}
    characters_C = np.array([*map(len, item["choices"])] * len(item["contexts"]), np.float64)
    choice = {
        "acc": int(sums_C.argmax()),
        "acc_norm": int((sums_C / characters_C).argmax()),
        "acc_token": int((sums_C / tokens_C).argmax()),
    }
    correct = {metric: index == item["gold"] for metric, index in choice.items()}
    return record | {"choice": choice, "correct": correct}


def summarise_task(
    kind: str,
    items: Sequence[Item],
    records: Sequence[Mapping[str, Any]],
    baseline: float | None = None,
    controls: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The means over `items`, whose records are `records`; `controls` has their records when asked
    otherwise. A `baseline` is declared; without one that of picking at random is taken."""
    metric = QUOTED[kind]
    groups, score = mean_by_group(kind, records, metric)
    checks = {name: mean_by_group(kind, each, metric)[1] for name, each in (controls or {}).items()}
    chance = 0.0
    if kind not in LAST_WORDS:
        chance = sum(1 / pairs_of(item) for item in items) / len(items)
    if controls and kind not in LAST_WORDS:
        golds: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for item in items:
            golds[pairs_of(item)][item["gold"]] += 1
        dealt = []
        for item, record in zip(items, records, strict=True):
            counts = golds[pairs_of(item)]
            dealt.append(counts[record["choice"][metric]] / counts.total())
        checks["answers_shuffled"] = mean(dealt)
    scores: dict[str, Any] = {
        "kind": kind,
        "items": len(items),
        "metric": metric,
        **score,
        "metrics": {
            name: mean([record["correct"][name] for record in records])
            for name in records[0]["correct"]
        },
        "groups": groups,
        "controls": checks,
        "chance": chance,
        "baseline": chance if baseline is None else baseline,
    }
    if kind == "lambada":
        scores["perplexity"] = perplexity([record["loglikelihoods"][0] for record in records])
    return scores


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
