"""Convert problems with checkable answers to checked records, and hold some out.

    nanoeuler problems --config config/config.yaml --name sums --output data/problems/sums

A record has a question (`instruction`, `question`, `problem` or `prompt`), sometimes its data
(`input`), and an answer (`answer`, `output` or `response`) that a reward compares a reply with. Of
an answer that ends with `#### 72`, as those of GSM8K do, that number is taken. Records that
cannot be learned from are left out and counted. All records of a prompt are on one side.
"""

from collections.abc import Mapping
from typing import Any

from nanoeuler.corpus.dialogue import (
    READ_OF_ALL,
    Unusable,
    check_fields,
    check_text,
    first_given,
    read_input,
)
from nanoeuler.corpus.instructions import RecordKind

QUESTION = ("instruction", "question", "problem", "prompt")
ANSWER = ("answer", "output", "response")
READ = {*READ_OF_ALL, *QUESTION, *ANSWER}
WANTED = "the texts question and answer"
FINAL = "####"
"""Stands in front of the answer, behind the way to it."""


def read_problem(value: Any) -> dict[str, str]:
    """Read the problem in a JSON value. Raises `Unusable`."""
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    check_fields(value)
    question = check_text(first_given(value, *QUESTION), "question")
    given = first_given(value, *ANSWER)
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    answer = check_text(str(given) if is_number else given, "answer")
    final = answer.rpartition(FINAL)[2].strip()
    return {
        "instruction": question,
        "input": read_input(value),
        "answer": check_text(final, f"answer behind {FINAL}"),
    }


prepare = RecordKind("problems", read_problem, WANTED, READ).prepare
