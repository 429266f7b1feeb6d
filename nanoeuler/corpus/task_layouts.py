"""Read records of tasks, in their public layouts, as items of one format.

An item asks a language model how likely each of its `choices` is after its context:

    {"id": "24", "contexts": ["Roof shingle removal: A man is sitting on a roof. He"],
     "choices": ["is using wrap …", …], "gold": 3}

Either all choices share one context, or (WinoGrande) one choice follows several contexts; the model
picks the likeliest pair. One space belongs between a context and a choice, and is in neither. The
wording around question and answer is that of lm-evaluation-harness, so that scores can be compared;
docs/evaluation.md has it.

    kind         official and Hugging Face's layout
    hellaswag    activity_label, ctx_a and ctx_b (or ctx), endings, label
    arc_*        question (text, or stem and choices), choices, answerKey
    piqa         goal, sol1, sol2, label (in the file, or NAME-labels.lst)
    winogrande   sentence with _, option1, option2, answer
    blimp        sentence_good, sentence_bad, UID, pairID (or pair_id)
    lambada      text

llm-foundry's layouts are kinds of their own, and the five kinds that are there too read them:

    multiple_choice      query, choices, gold[, category]
    schema               context_options, continuation, gold
    language_modelling   context, continuation[, category]

Kinds whose names begin with chat are asked through the template of the model, and have one context,
what is said to it:

    chat_choice          as arc_*; the choices are letters, which the context explains
    chat_number          question, answer, which may end with #### and a number, as in GSM8K
    chat_spelling        as lambada: the last word is to be spelled
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nanoeuler.storage.shape import is_text

Item = dict[str, Any]
Record = Mapping[str, Any]


class BadItem(Exception):
    """A record cannot be asked. Equal faults have equal words, so that they can be counted."""


ASKED = ("shots", "delimiter", "baseline")
"""Keys that say how a task is asked, which a configuration may give anew."""
LAST_WORDS = ("language_modelling", "lambada")
"""Kinds whose items have one continuation, which greedy decoding is to write."""
REPLIES = {"chat_number": "number", "chat_spelling": "answer"}
"""Kinds whose items are answered by a greedy reply → the reward by which it is right."""


def read_item(kind: str, record: Any, number: int, delimiter: str = "") -> Item:
    """Read the item in a JSON value of a file of `kind`. Raises `BadItem`.

    `number`, its position in the file, is its id if it has none of its own. `delimiter` is put
    behind each context.
    """
    if not isinstance(record, Mapping):
        raise BadItem("no JSON object")
    item = LAYOUTS[kind](record)
    if not all(choice.strip() for choice in item["choices"]):
        raise BadItem("a choice is empty")
    if kind not in (*LAST_WORDS, *REPLIES) and max(len(item["choices"]), len(item["contexts"])) < 2:
        raise BadItem("fewer than two choices")
    if not 0 <= item["gold"] < max(len(item["choices"]), len(item["contexts"])):
        raise BadItem("gold is out of range")
    item["contexts"] = [context + delimiter for context in item["contexts"]]
    ids = (record.get(key) for key in ("id", "ind", "qID"))
    name = next((value for value in ids if isinstance(value, str | int)), number)
    return {"id": str(name)} | item


def peers(items: Sequence[Item]) -> list[list[int]]:
    """For each item, the indices of those that may stand in for it or before it, itself included:
    those of its group with as many contexts."""
    alike: defaultdict[Any, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        alike[item.get("group"), len(item["contexts"])].append(index)
    return [alike[item.get("group"), len(item["contexts"])] for item in items]


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
    """Remove the marks of HellaSwag's WikiHow texts, as lm-evaluation-harness does."""
    return re.sub(r"\[.*?\]", "", wikihow.strip().replace(" [title]", ". ")).replace("  ", " ")


def arc(record: Record) -> Item:
    if "query" in record:
        return foundry(record, "\nAnswer:")
    question, choices = record.get("question"), record.get("choices")
    if isinstance(question, Mapping):
        choices = question.get("choices")
        question = question.get("stem")
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
        return schema(record)
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
        return language_modelling(record)
    context, _, word = text(record, "text").rpartition(" ")
    return {"contexts": [context], "choices": [word], "gold": 0}


def foundry(record: Record, ending: str = "") -> Item:
    """Read llm-foundry's layout of multiple choice.

    `ending` has the words right before the answer, which its `query` may lack.
    """
    query = text(record, "query").strip()
    if ending and query.endswith(ending.strip()):
        ending = ""
    return {
        "contexts": [query + ending],
        "choices": texts(record, "choices"),
        "gold": whole(record, "gold"),
        **category(record),
    }


def schema(record: Record) -> Item:
    return {
        "contexts": [context.rstrip() for context in texts(record, "context_options")],
        "choices": [text(record, "continuation").strip()],
        "gold": whole(record, "gold"),
    }


def language_modelling(record: Record) -> Item:
    return {
        "contexts": [text(record, "context").strip()],
        "choices": [text(record, "continuation").strip()],
        "gold": 0,
        **category(record),
    }


def category(record: Record) -> Item:
    return {"group": text(record, "category")} if "category" in record else {}


def chat_choice(record: Record) -> Item:
    item = arc(record)
    question = item["contexts"][0].removesuffix("\nAnswer:").removeprefix("Question: ")
    letters = [chr(ord("A") + number) for number in range(len(item["choices"]))]
    lines = map(". ".join, zip(letters, item["choices"], strict=True))
    asked = "\n".join([question, *lines, "Answer with the letter alone."])
    return item | {"contexts": [asked], "choices": letters}


def chat_number(record: Record) -> Item:
    answer = text(record, "answer").rpartition("####")[2].strip()
    return {"contexts": [text(record, "question")], "choices": [answer], "gold": 0}


def chat_spelling(record: Record) -> Item:
    word = lambada(record)["choices"][0]
    said = f"Spell this word, with a space between its letters: {word}"
    return {"contexts": [said], "choices": [" ".join(word)], "gold": 0}


LAYOUTS: dict[str, Callable[[Record], Item]] = {
    "hellaswag": hellaswag,
    "arc_easy": arc,
    "arc_challenge": arc,
    "piqa": piqa,
    "winogrande": winogrande,
    "blimp": blimp,
    "lambada": lambada,
    "multiple_choice": foundry,
    "schema": schema,
    "language_modelling": language_modelling,
    "chat_choice": chat_choice,
    "chat_number": chat_number,
    "chat_spelling": chat_spelling,
}
"""Kind of task → function that reads a record of it."""
QUOTED = {
    "hellaswag": "acc_norm",
    "arc_challenge": "acc_norm",
    "piqa": "acc_norm",
    "multiple_choice": "acc_token",
    "schema": "acc_token",
}
"""Kind of task → the score that is usually quoted, where it is not acc."""
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(LAYOUTS)]


def text(record: Record, field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise BadItem(f"{field} is missing or not text")
    if not is_text(value):
        raise BadItem(f"{field} has half a character (a lone surrogate)")
    return value


def texts(record: Record, field: str) -> list[str]:
    values = record.get(field)
    if not isinstance(values, list) or not values:
        raise BadItem(f"{field} are missing or empty")
    return [text({field: value}, field) for value in values]


def whole(record: Record, field: str) -> int:
    """Return a whole number, which may be given as text."""
    value = record.get(field)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,9}", str(value)):
        raise BadItem(f"{field} is missing or no whole number")
    return int(str(value))
