"""Exact answers: held-out questions with one right answer each, decoded greedily.

A score means little alone, so it comes with its standard error and with a baseline: the score of
always giving the commonest answer, without reading the question.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.evaluation.replies import Reply, describe_replies
from nanoeuler.storage.record_folder import RecordFolder, read_json_lines

MINIMUM_OF_A_KIND = 10
"""With fewer questions of a kind its commonest answer is chance, and no baseline."""


@dataclass(frozen=True)
class Question:
    instruction: str
    input: str
    answer: str
    kind: str | None = None
    preferred_ending: str | None = None


def read_questions(path: Path) -> list[Question]:
    """Read JSON lines {"instruction", "answer"[, "input", "kind", "preferred_ending"]}. Raises
    `UserError` naming the line of a mistake."""
    required, optional = ("instruction", "answer"), ("input", "kind", "preferred_ending")
    return [
        Question(
            entry["instruction"],
            entry.get("input", ""),
            entry["answer"],
            entry.get("kind"),
            entry.get("preferred_ending"),
        )
        for entry in read_records(path, required, optional)
    ]


def read_training_answers(manifest: Path) -> list[str]:
    """The responses of the instruction data whose manifest is given, which a model could learn to
    say regardless of the question."""
    train = RecordFolder(manifest, "instructions").file("train")
    entries = read_records(train, required=("output",))
    return [entry["output"] for entry in entries]


def read_records(
    path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """JSON lines with non-empty texts in the `required` fields, and texts in those `optional` ones
    that are given. Raises `UserError` naming the line of a mistake."""
    entries = []
    for where, entry in read_json_lines(path):
        mistake = mistake_in(entry, required, optional)
        if mistake:
            raise UserError(f"{where}: {mistake}; correct the line or take it out")
        entries.append(entry)
    if not entries:
        raise UserError(f"{path}: holds no records; run the stage that writes it again")
    return entries


def mistake_in(
    entry: Mapping[str, Any], required: Sequence[str], optional: Sequence[str]
) -> str | None:
    """The mistake in a record, or None."""
    for field in required:
        if not isinstance(entry.get(field), str) or not entry[field].strip():
            return f"{field} is missing, empty or not a text"
    for field in optional:
        if not isinstance(entry.get(field, ""), str):
            return f"{field} is not a text"
    return None


def normalise(text: str) -> str:
    """The form in which answers are compared: the first line, in small letters, without surrounding
    space and a final full stop."""
    first_line = next(iter(text.strip().splitlines()), "")
    return first_line.strip().removesuffix(".").rstrip().casefold()


def score_answers(
    questions: Sequence[Question],
    replies: Sequence[Reply],
    training_answers: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Score `replies`, one per question, as JSON values; shares are between 0 and 1.

    `score` is the share p of right replies, and `standard_error` is √(p (1 − p) / n).
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
                "reply": reply.text,
                "correct": right,
                "stopped": reply.stopped,
            }
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
    """The score of always giving one answer: {"answer", "score", "from"}.

    The answer is the commonest among the questions themselves, the most that any constant reply can
    score. Where the commonest answer of the training data scores the same, that one is named.
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
    """The most that one constant answer per kind of question can score; None where questions have
    no kind, or too few have the same."""
    by_kind: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for question in questions:
        by_kind[question.kind][normalise(question.answer)] += 1
    fewest = min(counts.total() for counts in by_kind.values())
    if None in by_kind or len(by_kind) < 2 or fewest < MINIMUM_OF_A_KIND:
        return None
    right = sum(commonest(counts)[1] for counts in by_kind.values())
    return {"kinds": len(by_kind), "score": right / len(questions)}


def commonest(counts: Counter[str]) -> tuple[str, int]:
    """The most frequent answer and its count; ties go to the first in the alphabet."""
    return min(counts.items(), key=lambda item: (-item[1], item[0]))
