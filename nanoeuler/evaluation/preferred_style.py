"""How often replies have the style that the preferences teach: a given ending."""

from collections.abc import Sequence
from typing import Any

from nanoeuler.evaluation.answers import Question, share
from nanoeuler.evaluation.replies import Reply


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
