"""The scores of several models side by side, as a table that reads well in a terminal and in Markdown.

nanoeuler compare results/demo/evaluation/pretrain.json results/demo/evaluation/sft.json
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.files import read_json

Evaluation = Mapping[str, Any]


def read_evaluations(paths: Sequence[Path]) -> dict[str, Evaluation]:
    """What `nanoeuler evaluate` wrote, by the name of the file; files of one name in several folders go by their run as well."""
    evaluations = {}
    for path in paths:
        value = read_json(path)
        if not is_evaluation(value):
            raise UserError(
                f"{path}: not an evaluation; give the JSON files that `nanoeuler evaluate` writes"
            )
        same = sum(other.stem == path.stem for other in paths) > 1
        evaluations[f"{path.absolute().parent.parent.name}/{path.stem}" if same else path.stem] = (
            value
        )
    return evaluations


def is_evaluation(value: Any) -> bool:
    """Whether a table can be made of it: other JSON lacks a part or has another shape somewhere."""
    try:
        rows_of([value])
    except (TypeError, AttributeError, LookupError, ValueError, StopIteration):
        return False
    return "held_out" in value


def compare(evaluations: Mapping[str, Evaluation]) -> str:
    """A Markdown table: a column for each evaluation, in their order, and one for what a model gets that knows nothing."""
    rows = [["", *evaluations, "baseline"], *rows_of(list(evaluations.values()))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = (
        "|"
        + "|".join(
            "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":"
            for column, width in enumerate(widths)
        )
        + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def rows_of(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    rows = []
    for source in names_in(evaluations, "held_out"):
        scores = [(evaluation["held_out"] or {}).get(source) for evaluation in evaluations]
        rows.append(
            [
                f"bits per byte, {source}",
                *(f"{score['bits_per_byte']:.3f}" if score else "–" for score in scores),
                "–",
            ]
        )
        for head in range(max(len(score["head_accuracy"]) for score in scores if score)):
            shares = [
                score["head_accuracy"][head]
                if score and head < len(score["head_accuracy"])
                else None
                for score in scores
            ]
            rows.append(
                [
                    f"{'next token' if head == 0 else f'token {head + 1} ahead'} right, {source}",
                    *map(percent, shares),
                    "–",
                ]
            )
    for task in names_in(evaluations, "tasks"):
        scores = [(evaluation.get("tasks") or {}).get(task) for evaluation in evaluations]
        first = next(score for score in scores if score)
        floors = [score["baseline"] for score in scores if score]
        rows.append(
            [
                f"{task} ({first['metric']}, {asked(scores, 'items')})",
                *map(with_error, scores),
                shared(floors),
            ]
        )
        perplexities = [
            (score or {}).get("perplexity") for score in scores
        ]  # of the kinds that have one, and a task's kind may have changed
        if any(perplexities):
            rows.append(
                [
                    f"{task} perplexity",
                    *(f"{each['score']:.4g}" if each else "–" for each in perplexities),
                    "–",
                ]
            )
    answers = [evaluation.get("answers") for evaluation in evaluations]
    if any(answers):
        floors = [each["commonest_answer"]["score"] for each in answers if each]
        rows.append(
            [
                f"exact answers ({asked(answers, 'questions')})",
                *map(with_error, answers),
                shared(floors),
            ]
        )
    chats = [evaluation.get("chat") or {} for evaluation in evaluations]
    answered = {
        "replies to questions": [each or {} for each in answers],
        "replies to instructions": chats,
        "sampled replies": [each.get("sampled") or {} for each in chats],
    }
    for title, replies in answered.items():
        if any(replies):
            rows.append(
                [f"{title} that stop", *(percent(each.get("stopped")) for each in replies), "–"]
            )
            rows.append(
                [
                    "their tokens",
                    *(f"{each['mean_reply_tokens']:.1f}" if each else "–" for each in replies),
                    "–",
                ]
            )
            rows.append(
                ["their repetition", *(percent(each.get("repetition")) for each in replies), "–"]
            )
    return rows


def asked(scores: Sequence[Mapping[str, Any] | None], key: str) -> str:
    """How many things were asked; where evaluations differ in it the number of each, in their order."""
    numbers = [f"{score[key]:,}" if score else "–" for score in scores]
    different = set(numbers) - {"–"}
    return different.pop() if len(different) == 1 else " / ".join(numbers)


def shared(floors: Sequence[float]) -> str:
    """The baseline that all have; other questions have another one."""
    return percent(floors[0]) if len(set(floors)) == 1 else "–"


def names_in(evaluations: Sequence[Evaluation], section: str) -> list[str]:
    """The keys of a section over all evaluations, in the order in which they come up."""
    return list(
        dict.fromkeys(name for evaluation in evaluations for name in evaluation.get(section) or {})
    )


def with_error(score: Mapping[str, Any] | None) -> str:
    if not score:
        return "–"
    error = "" if score["standard_error"] is None else f" ± {100 * score['standard_error']:.1f}"
    return f"{percent(score['score'])}{error}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
