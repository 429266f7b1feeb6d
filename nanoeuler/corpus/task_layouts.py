"""The files of multiple-choice tasks, in the layouts in which they go round, as items of one shape.

An item is what a language model is asked: how likely is each of the `choices` behind its context?

    {"id": "24", "contexts": ["Roof shingle removal: A man is sitting on a roof. He"], "choices": ["is using wrap …", …], "gold": 3}

Either all choices share one context, or (WinoGrande) one choice stands behind several contexts; the model's pick is the likeliest pair.
Between a context and a choice belongs one space, which is in neither. The wording around question and answer is that of
lm-evaluation-harness, so that scores compare; docs/evaluation.md has it.

    kind            official and Hugging Face's layout                               llm-foundry's
    hellaswag       activity_label, ctx_a and ctx_b (or ctx), endings, label         query, choices, gold
    arc_*           question (text, or stem and choices), choices, answerKey         query, choices, gold
    piqa            goal, sol1, sol2, label (in the file, or NAME-labels.lst)        query, choices, gold
    winogrande      sentence with _, option1, option2, answer                        context_options, continuation, gold
    blimp           sentence_good, sentence_bad, UID, pairID (or pair_id)
    lambada         text                                                             context, continuation
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Item = dict[str, Any]
Record = Mapping[str, Any]


class BadItem(Exception):
    """Why a record cannot be asked, in words that are the same for all records with this fault."""


def read_item(kind: str, record: Any, number: int) -> Item:
    """The item in a JSON value of a file of `kind`; `number` is its place there, its id where it has none of its own. Raises `BadItem`."""
    if not isinstance(record, Mapping):
        raise BadItem("no JSON object")
    item = LAYOUTS[kind](record)
    if not all(choice.strip() for choice in item["choices"]):
        raise BadItem("a choice is empty")
    if kind != "lambada" and max(len(item["choices"]), len(item["contexts"])) < 2:
        raise BadItem("fewer than two choices")
    if not 0 <= item["gold"] < max(len(item["choices"]), len(item["contexts"])):
        raise BadItem("gold is out of range")
    name = next(
        (record[key] for key in ("id", "ind", "qID") if isinstance(record.get(key), str | int)),
        number,
    )
    return {"id": str(name)} | item


def hellaswag(record: Record) -> Item:
    if "query" in record:
        return foundry(record)
    if "ctx_a" in record:
        context = f"{text(record, 'ctx_a')} {text(record, 'ctx_b').capitalize()}"
    else:
        context = text(record, "ctx")
    query = plain(f"{text(record, 'activity_label')}: {context}")
    return {
        "contexts": [query],
        "choices": [plain(ending) for ending in texts(record, "endings")],
        "gold": whole(record, "label"),
    }


def plain(wikihow: str) -> str:
    """HellaSwag's text without the marks that its WikiHow half carries, the way lm-evaluation-harness takes them out."""
    return re.sub(r"\[.*?\]", "", wikihow.strip().replace(" [title]", ". ")).replace("  ", " ")


def arc(record: Record) -> Item:
    if "query" in record:
        return foundry(record, "\nAnswer:")
    question, choices = record.get("question"), record.get("choices")
    if isinstance(question, Mapping):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, list) and all(isinstance(choice, Mapping) for choice in choices):
        choices = {key: [choice.get(key) for choice in choices] for key in ("text", "label")}
    if not isinstance(question, str):
        raise BadItem("question is missing or not text")
    if not isinstance(choices, Mapping):
        raise BadItem("choices are missing or not of the shape text, label")
    labels = texts(choices, "label")
    if len(labels) != len(texts(choices, "text")):
        raise BadItem("choices have not as many labels as texts")
    if record.get("answerKey") not in labels:
        raise BadItem("answerKey is none of the labels")
    return {
        "contexts": [f"Question: {question}\nAnswer:"],
        "choices": texts(choices, "text"),
        "gold": labels.index(record["answerKey"]),
    }


def piqa(record: Record) -> Item:
    if "query" in record:
        return foundry(record, "\nAnswer:")
    return {
        "contexts": [f"Question: {text(record, 'goal')}\nAnswer:"],
        "choices": [text(record, "sol1"), text(record, "sol2")],
        "gold": whole(record, "label"),
    }


def winogrande(record: Record) -> Item:
    if "context_options" in record:
        return {
            "contexts": texts(record, "context_options"),
            "choices": [text(record, "continuation").strip()],
            "gold": whole(record, "gold"),
        }
    before, blank, after = text(record, "sentence").partition("_")
    if not blank:
        raise BadItem("sentence has no _")
    return {
        "contexts": [before + text(record, "option1"), before + text(record, "option2")],
        "choices": [after.strip()],
        "gold": whole(record, "answer") - 1,
    }


def blimp(record: Record) -> Item:
    paradigm = text(record, "UID")
    return {
        "id": f"{paradigm}/{record.get('pairID', record.get('pair_id'))}",
        "group": paradigm,
        "contexts": [""],
        "choices": [text(record, "sentence_good"), text(record, "sentence_bad")],
        "gold": 0,
    }


def lambada(record: Record) -> Item:
    if "continuation" in record:
        context, word = text(record, "context"), text(record, "continuation").strip()
    else:
        context, _, word = text(record, "text").rpartition(" ")
    return {"contexts": [context], "choices": [word], "gold": 0}


def foundry(record: Record, ending: str = "") -> Item:
    """llm-foundry's multiple choice. Its `query` lacks the words right before the answer, which its task list holds: `ending`."""
    query = text(record, "query").rstrip()
    if ending and query.endswith(ending.strip()):
        ending = ""
    return {
        "contexts": [query + ending],
        "choices": texts(record, "choices"),
        "gold": whole(record, "gold"),
    }


LAYOUTS: dict[str, Callable[[Record], Item]] = {
    "hellaswag": hellaswag,
    "arc_easy": arc,
    "arc_challenge": arc,
    "piqa": piqa,
    "winogrande": winogrande,
    "blimp": blimp,
    "lambada": lambada,
}
"""Kind of task → what reads a record of it."""


def text(record: Record, field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise BadItem(f"{field} is missing or not text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise BadItem(f"{field} has half a character (a lone surrogate)")
    return value


def texts(record: Record, field: str) -> list[str]:
    values = record.get(field)
    if not isinstance(values, list) or not values:
        raise BadItem(f"{field} are missing or empty")
    return [text({field: value}, field) for value in values]


def whole(record: Record, field: str) -> int:
    """A whole number, as it is or as text."""
    value = record.get(field)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,9}", str(value)):
        raise BadItem(f"{field} is missing or no whole number")
    return int(value)
