"""Exact answers: held-out questions with one right answer each, asked greedily and compared literally.

A score means little alone, so it comes with its standard error and with what one would score without reading the question,
by always giving the commonest answer.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.evaluation.replies import Reply, describe_replies

MINIMUM_OF_A_KIND = 10
"""With fewer questions of a kind, its commonest answer is chance: no baseline per kind then."""


@dataclass(frozen=True)
class Question:
    instruction: str
    input: str
    answer: str
    kind: str | None = None
    preferred_ending: str | None = None


def read_questions(path: Path) -> list[Question]:
    """Read JSON lines {"instruction", "input", "answer"[, "kind", "preferred_ending"]}. Raises `UserError` naming the line of a mistake."""
    return [
        Question(
            entry["instruction"],
            entry.get("input", ""),
            entry["answer"],
            entry.get("kind"),
            entry.get("preferred_ending"),
        )
        for entry in read_records(
            path, required=("instruction", "answer"), optional=("input", "kind", "preferred_ending")
        )
    ]


def read_training_answers(manifest: Path) -> list[str]:
    """The responses of the instruction data whose manifest is given: what a model could learn to say regardless of the question."""
    return [
        entry["output"]
        for entry in read_records(manifest.parent / "train.jsonl", required=("output",))
    ]


def read_records(
    path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """JSON lines whose `required` fields are texts that are not empty, and whose `optional` ones are texts where they are there."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run the stage that writes it first") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from error
    entries = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not valid JSON ({error.msg}); correct the line or take it out"
            ) from error
        if not isinstance(entry, dict):
            raise UserError(
                f"{path}, line {number}: not a JSON object with {', '.join(required)}; correct the line or take it out"
            )
        for field in required:
            if not isinstance(entry.get(field), str) or not entry[field].strip():
                raise UserError(
                    f"{path}, line {number}: {field} is missing, empty or not a text; correct the line or take it out"
                )
        for field in optional:
            if not isinstance(entry.get(field, ""), str):
                raise UserError(
                    f"{path}, line {number}: {field} is not a text; correct the line or take it out"
                )
        entries.append(entry)
    if not entries:
        raise UserError(f"{path}: holds no records; run the stage that writes it again")
    return entries


def normalise(text: str) -> str:
    """The form in which answers are compared: the first line, without surrounding space, capitals and a final full stop."""
    first_line = next(iter(text.strip().splitlines()), "")
    return first_line.strip().removesuffix(".").rstrip().casefold()


def score_answers(
    questions: Sequence[Question],
    replies: Sequence[Reply],
    training_answers: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Score `replies`, one per question, as JSON values; shares are between 0 and 1.

    `score` is the share of right replies and `standard_error` that of a share over so many questions, √(p (1 − p) / n).
    """
    correct = [
        normalise(reply.text) == normalise(question.answer)
        for question, reply in zip(questions, replies, strict=True)
    ]
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for question, right in zip(questions, correct, strict=True):
        if question.kind is not None:
            by_kind[question.kind].append(right)
    return {
        **share(correct),
        "kinds": {kind: share(rights) for kind, rights in sorted(by_kind.items())},
        "commonest_answer": commonest_answer(questions, training_answers),
        "commonest_answer_of_kind": commonest_answer_of_kind(questions),
        **describe_replies(replies),
        "replies": [
            {
                "instruction": question.instruction,
                "input": question.input,
                "answer": question.answer,
                "kind": question.kind,
            }
            | {"reply": reply.text, "correct": right, "stopped": reply.stopped}
            for question, reply, right in zip(questions, replies, correct, strict=True)
        ],
    }


def share(correct: Sequence[bool]) -> dict[str, Any]:
    count, right = len(correct), sum(correct)
    score = right / count
    return {
        "questions": count,
        "correct": right,
        "score": score,
        "standard_error": math.sqrt(score * (1 - score) / count),
    }


def commonest_answer(
    questions: Sequence[Question], training_answers: Iterable[str] | None = None
) -> dict[str, Any]:
    """What always giving one answer scores: {"answer", "score", "from"}.

    The answer is the commonest of the training data, or the commonest among the questions themselves, whichever scores
    higher. The latter is the most that any constant reply can score, so it is the stricter baseline unless both agree.
    """
    answers = Counter(normalise(question.answer) for question in questions)
    answer, count = commonest(answers)
    best = {"answer": answer, "score": count / len(questions), "from": "the questions"}
    if training_answers is not None:
        learned, _ = commonest(Counter(map(normalise, training_answers)))
        if answers[learned] == count:
            return best | {"answer": learned, "from": "the instructions"}
    return best


def commonest_answer_of_kind(questions: Sequence[Question]) -> dict[str, Any] | None:
    """What one constant answer per kind of question scores at most; None without kinds, or with too few questions of one."""
    by_kind: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for question in questions:
        by_kind[question.kind][normalise(question.answer)] += 1
    if (
        None in by_kind
        or len(by_kind) < 2
        or min(counts.total() for counts in by_kind.values()) < MINIMUM_OF_A_KIND
    ):
        return None
    return {
        "kinds": len(by_kind),
        "score": sum(commonest(counts)[1] for counts in by_kind.values()) / len(questions),
    }


def commonest(counts: Counter[str]) -> tuple[str, int]:
    """The most frequent answer and its count; of equals the first in the alphabet."""
    return min(counts.items(), key=lambda item: (-item[1], item[0]))
