"""Tasks that are asked through a template: letters, and replies with and without a calculator.

The model is a chain of bytes: what it says depends on the last byte alone, the space behind
"Assistant:".
"""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.evaluation.asking import by_likelihood
from nanoeuler.evaluation.scores import task_lines
from nanoeuler.evaluation.tasks import score_task
from nanoeuler.inference import api
from nanoeuler.model.files import SavedModel
from nanoeuler.model.likelihood import in_order
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.models import chain

TOKENIZER = Tokenizer(build([]))
CALL, CALL_END = TOKENIZER.call_ids
NEXT = {" ": {"call": 0.8, "A": 0.05, "B": 0.01, "5": 0.1}, "5": {"</s>": 0.9}}
"""Chances of what follows a byte; the rest is spread evenly."""
NEXT |= {"call": {"7": 0.9}, "7": {"*": 0.9}, "*": {"9": 0.9}, "9": {"end": 0.9}}
NEXT |= {"3": {"</s>": 0.9}, "A": {"</s>": 0.9}, "B": {"</s>": 0.9}}


def number(name: str) -> int:
    named = {"call": CALL, "end": CALL_END, "</s>": TOKENIZER.end_id}
    return named[name] if name in named else int(TOKENIZER.encode(name)[0])


@pytest.fixture(scope="module")
def model() -> api.LanguageModel:
    """It says "63", of which it has the calculator make a sum, or without that "5"."""
    V = TOKENIZER.vocab_size
    chances = np.full((V, V), 1.0 / V)
    for before, followers in NEXT.items():
        row = chances[number(before)]
        row[...] = 1e-6
        for after, share in followers.items():
            row[number(after)] = share
    chances /= chances.sum(axis=1, keepdims=True)
    made = chain(ReferenceBackend(np.float64), chances, context=160, dim=320, mtp_heads=1)
    saved = SavedModel(made.config, made.parameters, "", "sft", "chat", calculator=True)  # type: ignore[arg-type]
    return api.LanguageModel(saved, TOKENIZER, made.backend)


def items(*answers: str) -> list[dict]:
    return [
        {"id": str(n), "contexts": [f"What is {n}?"], "choices": [answer], "gold": 0}
        for n, answer in enumerate(answers)
    ]


def described(kind: str) -> dict:
    return {"name": "quiz", "kind": kind, "bad": {}, "baseline": None, "group": None}


def test_replies_are_right_by_their_last_number_with_and_without_the_calculator(model, tmp_path):
    task = described("chat_number"), items("63", "5", "5", "63.0", "8", "5")
    settings = {"max_new_tokens": 9, "controls": True}
    scores, records = score_task(model, tmp_path, task, 160, settings, 1)
    assert [record["reply"] for record in records] == ["63"] * 6
    right = [record["id"] for record in records if record["correct"]["acc"]]
    assert right == ["0", "3"]
    assert {record["without_calculator"]["reply"] for record in records} == {"5"}
    assert (scores["score"], scores["chance"], scores["baseline"]) == (2 / 6, 3 / 6, 3 / 6)
    assert scores["controls"]["without_calculator"]["score"] == 3 / 6
    scores["group"] = "chat"
    titles = [line.name for line in task_lines([{"tasks": {"quiz": scores}}])]
    assert titles == ["quiz", "quiz, without the calculator"]
    assert scores["truncated"] == 0
    long = [item | {"contexts": ["?" * 150]} for item in task[1]]
    scores, _ = score_task(model, tmp_path, (task[0], long), 160, settings, 1)
    assert scores["truncated"] == 6
    scores, _ = score_task(model, tmp_path, task, 160, settings | {"controls": False}, 1)
    assert scores["controls"] == {}


def test_a_letter_is_chosen_by_its_chance_right_behind_the_template(model, tmp_path):
    letters = [
        {"id": str(n), "contexts": [f"{n}?"], "choices": ["A", "B"], "gold": n % 3 > 0}
        for n in range(6)
    ]
    asked = by_likelihood(
        model, described("chat_choice"), letters, range(6), 160, True, 1, in_order
    )
    wanted = np.log([0.05 / 0.96, 0.01 / 0.96])
    for record in asked.records:
        np.testing.assert_allclose(record["loglikelihoods"], wanted, atol=1e-3)
        assert record["choice"]["acc"] == 0
    scores, _ = score_task(
        model, tmp_path, (described("chat_choice"), letters), 160, {"controls": True}, 1
    )
    controls = {name: each["score"] for name, each in scores["controls"].items()}
    assert controls == {"context_swapped": 2 / 6, "answers_shuffled": 2 / 6}
    assert (scores["score"], scores["chance"]) == (2 / 6, 1 / 2)
