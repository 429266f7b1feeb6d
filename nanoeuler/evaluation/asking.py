"""A model is asked the items of a task: which choice is likeliest, or what it replies.

A few other items may stand before each, answered right, one a line. A kind whose name begins with
chat is asked through the template of the model, or of one that was tuned.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.corpus.task_layouts import LAST_WORDS, REPLIES, Item, peers
from nanoeuler.evaluation.answers import write_replies
from nanoeuler.evaluation.continuations import Pair, encode, log_likelihoods
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import GREEDY
from nanoeuler.model.likelihood import Share
from nanoeuler.model.template import TEMPLATES
from nanoeuler.training.parents import UNTUNED_TEMPLATE
from nanoeuler.training.rewards import HERE

SPACE = " "
"""Between a context and a choice. A text without a context starts with it, as in
lm-evaluation-harness."""

Record = dict[str, Any]


@dataclass
class Asked:
    """Items that a model was asked, and a record for each."""

    items: list[Item] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    controls: dict[str, list[Record]] = field(default_factory=dict)
    """Name of a control → the records of the same items, asked otherwise."""
    truncated: int = 0  # items that lost tokens on their left
    too_long: int = 0  # items that could not be asked, since a choice is longer than the window


def by_likelihood(
    model: LanguageModel,
    described: Mapping[str, Any],
    items: Sequence[Item],
    chosen: Sequence[int],
    window: int,
    swap: bool,
    seed: int,
    share: Share,
) -> Asked:
    """Ask the items with the indices `chosen` of a task, whose manifest is `described`, which of
    their choices is likeliest. `swap`: also with the contexts of other items."""
    name, kind, shots = described["name"], described["kind"], described.get("shots") or 0
    asked, alike = Asked(), peers(items)
    own: list[Pair] = []
    swapped: list[Pair] = []
    for index in chosen:
        item = items[index]
        *_, other = drawn = [index, *draw(alike[index], index, shots + 1, seed)]
        examples = "".join(answered(items[each]) for each in drawn[1 : shots + 1])
        pairs = encode_item(model, kind, examples, item["contexts"], item["choices"])
        if max(pair.scored for pair in pairs) > window:
            asked.too_long += 1
            continue
        asked.truncated += any(pair.inputs(window) < len(pair.ids) - 1 for pair in pairs)
        asked.items.append(item)
        own += pairs
        if swap:
            contexts = items[other]["contexts"]
            swapped += encode_item(model, kind, examples, contexts, item["choices"])

    def ask(title: str, sequences: Sequence[Pair]) -> list[Record]:
        with log.Progress(title, len(sequences), "choices") as progress:
            sums_S, greedy_S = log_likelihoods(
                model.transformer, sequences, window, model.tokenizer.end_id, progress.update, share
            )
        tokens_S = np.array([pair.scored for pair in sequences])
        records, first = [], 0
        for item in asked.items:
            part = slice(first, first + pairs_of(item))
            records.append(judge(kind, item, sums_S[part], tokens_S[part], bool(greedy_S[first])))
            first = part.stop
        return records

    asked.records = ask(name, own)
    if swap and any(any(item["contexts"]) for item in asked.items):
        asked.controls["context_swapped"] = ask(f"{name}, swapped", swapped)
    return asked


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


def encode_item(
    model: LanguageModel,
    kind: str,
    examples: str,
    contexts: Sequence[str],
    choices: Sequence[str],
) -> list[Pair]:
    if not kind.startswith("chat"):
        pairs = [(examples + context, SPACE + choice) for context in contexts for choice in choices]
        return [encode(model.tokenizer, *pair) for pair in pairs]
    template = TEMPLATES[model.template or UNTUNED_TEMPLATE]
    framed = np.array(model.writer.frame(template(contexts[0])), np.int32)
    replies = map(model.tokenizer.encode, choices)
    return [Pair(np.concatenate([framed, reply]), len(reply)) for reply in replies]


def pairs_of(item: Item) -> int:
    """The number of its (context, choice) pairs."""
    return len(item["contexts"]) * len(item["choices"])


def judge(kind: str, item: Item, sums_C: np.ndarray, tokens_C: np.ndarray, greedy: bool) -> Record:
    """The model's choice for one item, whose pairs have the log-likelihoods `sums_C` and
    `tokens_C` tokens behind their contexts."""
    record = identify(item) | {"loglikelihoods": sums_C.tolist()}
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


def identify(item: Item) -> Record:
    return {key: item[key] for key in ("id", "gold", "group") if key in item}


def by_replies(
    model: LanguageModel,
    described: Mapping[str, Any],
    items: Sequence[Item],
    chosen: Sequence[int],
    max_tokens: int,
    controls: bool,
    share: Share,
) -> Asked:
    """Do the same for a task that is answered by greedy replies. `controls`: also without the
    calculator, if the model has learned to call it."""
    asked = Asked([items[index] for index in chosen])
    template = model.template or UNTUNED_TEMPLATE
    prompts = [(item["contexts"][0], "") for item in asked.items]
    right = HERE[REPLIES[described["kind"]]]

    def ask(writer: Writer) -> list[Record]:
        replies = write_replies(writer, template, prompts, GREEDY, max_tokens, share=share)
        return [
            identify(item)
            | {"answer": item["choices"][0], "reply": reply.text, "tokens": reply.tokens}
            | {"stopped": reply.stopped}
            | {"correct": {"acc": right(said, reply.text, item["choices"][0])}}
            for item, (said, _), reply in zip(asked.items, prompts, replies, strict=True)
        ]

    asked.records = ask(model.writer)
    for (said, _), record in zip(prompts, asked.records, strict=True):
        tokens = len(model.writer.frame(TEMPLATES[template](said))) + record["tokens"]
        asked.truncated += tokens > model.config.context
    if controls and model.writer.calculator:
        asked.controls["without_calculator"] = ask(Writer(model.transformer, model.tokenizer))
    return asked
