"""Exact answers: when they are equal, what stands beside a score, what a file must look like."""

import json
import math
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.evaluation.answers import (
    Question,
    Reply,
    commonest_answer,
    commonest_answer_of_kind,
    normalise,
    preferred_share,
    read_questions,
    read_training_answers,
    score_answers,
)


def ask(*answers: str, kind: str | None = None) -> list[Question]:
    return [Question("What is it?", "", answer, kind) for answer in answers]


def say(*texts: str, stopped: bool = True) -> list[Reply]:
    return [Reply(text, tokens=len(text), stopped=stopped) for text in texts]


@pytest.mark.parametrize(
    "reply",
    [
        "Copper",
        "copper.",
        "  copper \n",
        "COPPER.\nIt is mined in the hills.",
        "\n\ncopper .",
        "Copper\r\nand tin",
    ],
)
def test_a_reply_is_right_whatever_its_capitals_space_and_full_stop(reply):
    assert normalise(reply) == normalise("copper")


@pytest.mark.parametrize(
    "reply",
    ["", "   ", "copper..", "the copper", "copper and tin", "it is\ncopper", "cop per", "'copper'"],
)
def test_anything_else_is_wrong(reply):
    assert normalise(reply) != normalise("copper")


def test_case_is_folded_as_unicode_has_it():
    assert normalise("STRASSE") == normalise("straße")


def test_a_score_comes_with_its_count_and_standard_error():
    scores = score_answers(
        ask("tin", "tin", "salt", "iron"),
        [*say("Tin.", "tin", "salt"), Reply("irony", 30, stopped=False)],
    )
    assert (scores["questions"], scores["correct"], scores["score"]) == (4, 3, 0.75)
    assert scores["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert scores["stopped"] == 0.75
    assert scores["mean_reply_tokens"] == pytest.approx((4 + 3 + 4 + 30) / 4)
    assert [reply["correct"] for reply in scores["replies"]] == [True, True, True, False]
    assert (
        scores["replies"][3] | {"reply": "irony", "answer": "iron", "stopped": False}
        == scores["replies"][3]
    )
    assert json.loads(json.dumps(scores)) == scores


def test_kinds_are_scored_apart():
    questions = [*ask("tin", "iron", kind="mine"), *ask("Velis", kind="port")]
    kinds = score_answers(questions, say("tin", "tin", "Velis"))["kinds"]
    assert {kind: share["score"] for kind, share in kinds.items()} == {"mine": 0.5, "port": 1.0}


def test_the_baseline_is_the_most_that_one_answer_for_all_can_score():
    assert commonest_answer(ask("tin", "Tin.", "salt", "iron")) == {
        "answer": "tin",
        "score": 0.5,
        "from": "the questions",
    }
    assert commonest_answer(ask("b", "a"))["answer"] == "a"  # ties always go the same way


def test_the_training_data_only_name_the_baseline_when_their_commonest_answer_scores_as_much():
    questions = ask("tin", "tin", "salt")
    assert commonest_answer(questions, ["salt", "salt", "tin"]) == {
        "answer": "tin",
        "score": 2 / 3,
        "from": "the questions",
    }
    assert commonest_answer(questions, ["Tin", "tin", "salt"]) == {
        "answer": "tin",
        "score": 2 / 3,
        "from": "the instructions",
    }
    assert commonest_answer(ask("a", "b"), ["b"]) == {
        "answer": "b",
        "score": 0.5,
        "from": "the instructions",
    }


def test_a_baseline_per_kind_needs_kinds_with_enough_questions():
    mines, ports = (
        ask(*["tin"] * 8, "salt", "iron", kind="mine"),
        ask(*["Velis"] * 5, *["Orm"] * 5, kind="port"),
    )
    assert commonest_answer_of_kind(mines + ports) == {"kinds": 2, "score": 13 / 20}
    assert commonest_answer_of_kind(mines + ports[:9]) is None
    assert commonest_answer_of_kind(mines) is None
    assert commonest_answer_of_kind(mines + ask("tin")) is None


def test_questions_are_read_with_and_without_input_and_kind(tmp_path):
    path = tmp_path / "questions.jsonl"
    entries = [
        {"instruction": "Where?", "input": "the mill", "answer": "Orm", "kind": "place"},
        {"instruction": "Who\u2028?", "answer": "Ada"},
    ]
    path.write_text(
        "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries) + "\n",
        encoding="utf-8",
    )
    assert read_questions(path) == [
        Question("Where?", "the mill", "Orm", "place"),
        Question("Who\u2028?", "", "Ada", None),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"instruction": "Where?"}', "answer is missing"),
        ('{"instruction": "Where?", "answer": "  "}', "answer is missing, empty"),
        ('{"instruction": 3, "answer": "Orm"}', "instruction is missing, empty or not a text"),
        ('{"instruction": "Where?", "answer": "Orm", "input": 3}', "input is not a text"),
        ('{"instruction": "Where?", "answer": "Orm"', "not valid JSON"),
        ('["Where?", "Orm"]', "not a JSON object"),
    ],
)
def test_a_mistake_in_a_question_is_said_with_its_line(tmp_path, line, problem):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"instruction": "Where?", "answer": "Orm"}\n' + line + "\n")
    with pytest.raises(UserError, match=f"questions.jsonl, line 2: {problem}"):
        read_questions(path)


def test_a_file_of_questions_that_is_missing_empty_or_not_text_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="holds no records"):
        read_questions(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(
        '{"instruction": "Où?", "answer": "là"}'.encode("latin-1")
    )
    with pytest.raises(UserError, match="not UTF-8"):
        read_questions(tmp_path / "latin.jsonl")


def test_training_answers_are_read_beside_their_manifest(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text(
        '{"instruction": "Say tin.", "input": "", "output": "tin"}\n'
    )
    (tmp_path / "manifest.json").write_text('{"version": 1}')
    assert read_training_answers(tmp_path / "manifest.json") == ["tin"]


def test_the_share_of_replies_with_the_preferred_ending():
    polite, free = (
        Question("Who?", "", "Ada", None, "At your service."),
        Question("Who?", "", "Ada"),
    )
    replies = say(
        "Ada\nAt your service.\n",
        "Ada",
        "At your service. Ada",
        "Bo\nAt your service.",
        "At your service.",
    )
    found = preferred_share([polite] * 4 + [free], replies)
    assert found == {
        "replies": 4,
        "preferred": 2,
        "share": 0.5,
        "standard_error": math.sqrt(0.25 / 4),
    }


def test_questions_without_a_preferred_ending_have_no_share():
    assert preferred_share([Question("Who?", "", "Ada")], say("Ada")) is None
