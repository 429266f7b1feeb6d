"""The scores of several models side by side, as a table for a terminal and for Markdown.

nanoeuler compare results/demo/evaluation/pretrain.json results/demo/evaluation/sft.json
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.evaluation import shapes
from nanoeuler.storage.files import read_json
from nanoeuler.storage.integrity import Origin, check_seal
from nanoeuler.storage.shape import check_shape

Evaluation = Mapping[str, Any]
EVALUATION = Origin("`nanoeuler evaluate`", "delete it, or let `nanoeuler evaluate` write it again")


def read_evaluations(paths: Sequence[Path]) -> dict[str, Evaluation]:
    """Evaluations by the names of their files; where two files have one name, the names of their
    runs stand before all."""
    evaluations = {}
    of_several_runs = len({path.stem for path in paths}) < len(paths)
    for path in paths:
        value = read_json(path)
        if isinstance(value, dict):
            check_seal(path, value, EVALUATION)
        mend = "give the JSON files that `nanoeuler evaluate` writes"
        check_shape(path, value, shapes.Evaluation, mend, "an evaluation")
        name = path.stem
        if of_several_runs:
            name = f"{path.absolute().parent.parent.name}/{name}"
        evaluations[name] = value
    return evaluations


def compare(evaluations: Mapping[str, Evaluation]) -> str:
    """A Markdown table: a column for each evaluation, in their order, and one for baselines, if
    there are any."""
    rows = [["", *evaluations, "baseline"], *rows_of(list(evaluations.values()))]
    if all(baseline == "–" for *_, baseline in rows[1:]):
        rows = [row[:-1] for row in rows]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "|".join(["-" * (first + 2), *("-" * (width + 1) + ":" for width in others)])
    lines = []
    for title, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        lines.append(f"| {' | '.join([title.ljust(first), *aligned])} |")
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def scores(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Any]]:
    """The scores of each evaluation, for programs: without single replies and groups of items."""
    return {
        name: {
            **{key: each.get(key) for key in ("stage", "parameters", "held_out", "chat")},
            "tasks": {
                task: {key: value for key, value in score.items() if key != "groups"}
                for task, score in (each.get("tasks") or {}).items()
            },
            "answers": {
                key: value for key, value in (each.get("answers") or {}).items() if key != "replies"
            }
            or None,
        }
        for name, each in evaluations.items()
    }


def rows_of(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    rows = []

    def add(title: str, cells: Iterable[str], baseline: str = "–") -> None:
        rows.append([title, *cells, baseline])

    for source in names_in(evaluations, "held_out"):
        scores = [(evaluation["held_out"] or {}).get(source) for evaluation in evaluations]
        bits = (f"{score['bits_per_byte']:.3f}" if score else "–" for score in scores)
        add(f"bits per byte, {source}", bits)
        accuracies = [score["head_accuracy"] if score else [] for score in scores]
        for head in range(max(len(score["head_accuracy"]) for score in scores if score)):
            title = "next token" if head == 0 else f"token {head + 1} ahead"
            shares = (each[head] if head < len(each) else None for each in accuracies)
            add(f"{title} right, {source}", map(percent, shares))
    for task in names_in(evaluations, "tasks"):
        scores = [(evaluation.get("tasks") or {}).get(task) for evaluation in evaluations]
        measured = [score for score in scores if score]
        title = f"{task} ({measured[0]['metric']}, {asked(scores, 'items')})"
        add(title, map(with_error, scores), shared([score["baseline"] for score in measured]))
        # Only some kinds of task have a perplexity, and a task's kind may have changed.
        perplexities = [(score or {}).get("perplexity") for score in scores]
        if any(perplexities):
            shown = (f"{each['score']:.4g}" if each else "–" for each in perplexities)
            add(f"{task} perplexity", shown)
    answers = [evaluation.get("answers") for evaluation in evaluations]
    if any(answers):
        baseline = shared([each["commonest_answer"]["score"] for each in answers if each])
        title = f"exact answers ({asked(answers, 'questions')})"
        add(title, map(with_error, answers), baseline)
    chats = [evaluation.get("chat") or {} for evaluation in evaluations]
    for title, replies in {
        "replies to questions": [each or {} for each in answers],
        "replies to instructions": chats,
        "sampled replies": [each.get("sampled") or {} for each in chats],
    }.items():
        if any(replies):
            lengths = (f"{each['mean_reply_tokens']:.1f}" if each else "–" for each in replies)
            add(f"{title} that stop", (percent(each.get("stopped")) for each in replies))
            add("their tokens", lengths)
            add("their repetition", (percent(each.get("repetition")) for each in replies))
    return rows


def asked(scores: Sequence[Mapping[str, Any] | None], key: str) -> str:
    """The number of things that were asked; where evaluations differ, the number of each."""
    numbers = [f"{score[key]:,}" if score else "–" for score in scores]
    different = set(numbers) - {"–"}
    return different.pop() if len(different) == 1 else " / ".join(numbers)


def shared(baselines: Sequence[float]) -> str:
    """The baseline, where all have the same."""
    return percent(baselines[0]) if len(set(baselines)) == 1 else "–"


def names_in(evaluations: Sequence[Evaluation], section: str) -> list[str]:
    """The keys of a section over all evaluations, in order of appearance."""
    sections = (evaluation.get(section) or {} for evaluation in evaluations)
    return list(dict.fromkeys(name for each in sections for name in each))


def with_error(score: Mapping[str, Any] | None) -> str:
    if not score:
        return "–"
    error = "" if score["standard_error"] is None else f" ± {100 * score['standard_error']:.1f}"
    return f"{percent(score['score'])}{error}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
