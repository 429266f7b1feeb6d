"""Replies to instructions, continuations of texts, and their scores.

Exact answers: held-out questions with one right answer each, decoded greedily. A score means little
alone, so it comes with its standard error and with a baseline: the score of always giving the
commonest answer, without reading the question.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.calls import without_calls
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.template import TEMPLATES
from nanoeuler.storage.record_folder import RecordFolder, read_json_lines
from nanoeuler.training.rewards import normalise

MINIMUM_OF_A_KIND = 10
"""With fewer questions of a kind its commonest answer is chance, and no baseline."""
ROWS = 64
"""Replies that are written at a time."""


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int
    stopped: bool  # by itself, with `</s>`; False: cut off at the limit


def share_repeated(text: str, words: int = 4) -> float:
    """Share of a text's runs of four words that repeat an earlier one: 1 − different runs / runs,
    and 0 for a text of fewer words.

    This is seq-rep-4 of Welleck et al. 2019 (section 6), over words instead of tokens, so that
    models with different tokenizers compare.
    """
    split = text.split()
    runs = [tuple(split[start : start + words]) for start in range(len(split) - words + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def describe_replies(replies: Sequence[Reply]) -> dict[str, float]:
    """Share of the replies that stop, mean length in tokens and words, mean `share_repeated`."""
    count = len(replies)
    return {
        "stopped": sum(reply.stopped for reply in replies) / count,
        "mean_reply_tokens": sum(reply.tokens for reply in replies) / count,
        "mean_reply_words": sum(len(reply.text.split()) for reply in replies) / count,
        "repetition": sum(share_repeated(reply.text) for reply in replies) / count,
    }


def write_replies(
    writer: Writer,
    template: str | None,
    instructions: Sequence[tuple[str, str]],
    sampling: Sampling,
    max_tokens: int,
    spacing: int = 0,
    share: Share = in_order,
) -> list[Reply]:
    """Answer (instruction, input) pairs through the prompt template, framed as in training:
    `</s>` prompt response `</s>`; without a template, continue each instruction as the start of a
    document. `spacing` and `share`: see `Writer.batch`."""
    texts = [
        TEMPLATES[template](instruction, input) if template else instruction
        for instruction, input in instructions
    ]
    prompts = [writer.frame(text) for text in texts]
    continuations = writer.batch(prompts, sampling, max_tokens, ROWS, spacing, share)
    return [
        Reply(writer.tokenizer.decode_reply(each.ids), len(each.ids), each.ended)
        for each in continuations
    ]


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
    return [without_calls(entry["output"]) for entry in entries]


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


def preferred_share(
    questions: Sequence[Question], replies: Sequence[Reply]
) -> dict[str, Any] | None:
    """The share of replies, one per question, that end with the question's preferred ending, with
    its standard error. Questions without one do not count; None where none has one."""
    kept = [
        reply.text.rstrip().endswith(question.preferred_ending)
        for question, reply in zip(questions, replies, strict=True)
        if question.preferred_ending
    ]
    if not kept:
        return None
    counted = share(kept)
    return {
        "replies": counted["questions"],
        "preferred": counted["correct"],
        "share": counted["score"],
        "standard_error": counted["standard_error"],
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
