"""Rows of a table of scores: one evaluation a column, and last what a reply or a prediction without a model gets."""

from collections.abc import Mapping
from typing import Any

from nanoeuler.evaluation.comparison import asked
from nanoeuler.evaluation.report.markup import (
    Markup,
    decimals,
    element,
    join,
    percent,
    short_count,
    significant,
)


def score_rows(evaluations: list[dict[str, Any]], bigram: Mapping[str, float]) -> list[list[Any]]:
    """Everything that was measured; an evaluation that lacks something, or an empty one, has a dash there."""
    return (
        held_out_rows(evaluations, bigram)
        + answer_rows(evaluations)
        + task_rows(evaluations)
        + chat_rows(evaluations)
    )


def held_out_rows(
    evaluations: list[dict[str, Any]], bigram: Mapping[str, float]
) -> list[list[Any]]:
    rows = []
    for source in dict.fromkeys(
        source for evaluation in evaluations for source in evaluation.get("held_out") or {}
    ):
        values = [
            decimals((evaluation.get("held_out") or {}).get(source, {}).get("bits_per_byte"))
            for evaluation in evaluations
        ]
        rows.append(
            [
                f"bits per byte, {source}",
                *values,
                with_remark(decimals(bigram.get(source)), "bigram") if source in bigram else "–",
            ]
        )
    return rows


def answer_rows(evaluations: list[dict[str, Any]]) -> list[list[Any]]:
    """Exact answers to held-out questions, beside the commonest answer given always."""
    scored = [evaluation.get("answers") for evaluation in evaluations]
    first = next(filter(None, scored), None)
    if first is None:
        return []
    floors = {one["commonest_answer"]["score"] for one in scored if one}
    floor = with_remark(
        percent(first["commonest_answer"]["score"]),
        f"always “{first['commonest_answer']['answer']}”",
    )
    return [
        [
            f"exact answers of {asked(scored, 'questions')}",
            *(with_error(answers) if answers else "–" for answers in scored),
            floor if len(floors) == 1 else "–",  # other questions have another one
        ],
        [
            "replies to questions that stop",
            *(percent(answers["stopped"]) if answers else "–" for answers in scored),
            "–",
        ],
        [
            "tokens per reply",
            *(f"{answers['mean_reply_tokens']:.1f}" if answers else "–" for answers in scored),
            "–",
        ],
    ]


def task_rows(evaluations: list[dict[str, Any]]) -> list[list[Any]]:
    """Every task's score with its standard error, and what picking at random scores."""
    rows = []
    for task in dict.fromkeys(
        task for evaluation in evaluations for task in evaluation.get("tasks") or {}
    ):
        scores = [(evaluation.get("tasks") or {}).get(task) for evaluation in evaluations]
        first = next(score for score in scores if score)
        shown = [with_error(score) if score else "–" for score in scores]
        title = with_remark(task, f"{first['metric']}, {asked(scores, 'items')} items")
        floors = {percent(score["baseline"]) for score in scores if score}
        rows.append(
            [title, *shown, with_remark(floors.pop(), "at random") if len(floors) == 1 else "–"]
        )
        perplexities = [
            (score or {}).get("perplexity") for score in scores
        ]  # of the kinds that have one, and a task's kind may have changed
        if any(perplexities):
            rows.append(
                [
                    f"{task}, perplexity",
                    *(perplexity(each["score"]) if each else "–" for each in perplexities),
                    "–",
                ]
            )
    return rows


def chat_rows(evaluations: list[dict[str, Any]]) -> list[list[Any]]:
    """How replies to held-out instructions end and repeat themselves, and how many have the style that preferences teach."""
    rows = []
    chats = [evaluation.get("chat") for evaluation in evaluations]
    for title, found in (
        ("replies", chats),
        ("sampled replies", [chat and chat.get("sampled") for chat in chats]),
    ):
        if not any(found):
            continue
        name = f"{title} to {asked(chats, 'prompts')} instructions"
        rows.append(
            [
                f"{name} that stop",
                *(percent(chat["stopped"]) if chat else "–" for chat in found),
                "–",
            ]
        )
        rows.append(
            [
                f"{name}, tokens",
                *(f"{chat['mean_reply_tokens']:.1f}" if chat else "–" for chat in found),
                "–",
            ]
        )
        rows.append(
            [
                f"{name}, repeated runs of four words",
                *(percent(chat.get("repetition")) if chat else "–" for chat in found),
                "–",
            ]
        )
    styles = [(evaluation.get("answers") or {}).get("style") for evaluation in evaluations]
    if any(styles):
        shown = [
            with_error({"score": style["sampled"]["share"], **style["sampled"]}) if style else "–"
            for style in styles
        ]
        rows.append(["sampled replies in the preferred style", *shown, "–"])
    return rows


def perplexity(value: float) -> str:
    """Four digits; of a model that knows nothing it has nine before the point."""
    return significant(value, 4) if value < 1e5 else short_count(value)


def with_error(score: dict[str, Any]) -> Markup:
    error = score.get("standard_error")
    return with_remark(percent(score["score"]), f"± {100 * error:.1f}" if error is not None else "")


def with_remark(value: str, remark: str) -> Markup:
    return join([value, element("small", remark) if remark else ""], " ")
