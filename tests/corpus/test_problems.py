"""Problems with checkable answers: what is read, and what is left out."""

import json
from pathlib import Path

import pytest

from nanoeuler.config import load
from nanoeuler.corpus.dialogue import Unusable
from nanoeuler.corpus.problems import prepare, read_problem
from nanoeuler.errors import UserError
from nanoeuler.storage.record_folder import RecordFolder, read_json_lines


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"question": "Add.", "answer": "1 + 2 = <<1+2=3>>3\n#### 3"}, "3"),
        ({"instruction": "Add.", "output": "Three."}, "Three."),
        ({"problem": "Add.", "answer": 3}, "3"),
        ({"prompt": "Add.", "response": "3", "input": ""}, "3"),
    ],
)
def test_a_question_and_its_answer_are_read(value, answer):
    assert read_problem(value) == {"instruction": "Add.", "input": "", "answer": answer}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "no JSON object"),
        ({"question": "Add."}, "answer is missing"),
        ({"answer": "3"}, "question is missing"),
        ({"question": "Add.", "answer": "so ####"}, "answer behind #### is empty"),
        ({"question": "Add.", "answer": True}, "answer is not text"),
        ({"question": "Add.", "answer": "3", "output": "4"}, "answer and output differ"),
        ({"question": "Add.", "answer": "3", "images": ["a"]}, "images, for which there is no"),
    ],
)
def test_a_record_without_both_is_left_out(value, fault):
    with pytest.raises(Unusable, match=fault):
        read_problem(value)


def test_they_are_split_by_their_prompts(tmp_path):
    lines = [json.dumps({"question": f"{n % 50}?", "answer": str(n)}) for n in range(100)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    manifest = prepare(str(tmp_path / "mine.jsonl"), {}, 0.1, tmp_path / "problems")
    assert manifest["records"] == manifest["train"]["records"] + manifest["validation"]["records"]
    folder = RecordFolder(tmp_path / "problems/manifest.json", "problems")
    asked = {
        part: {record["instruction"] for _, record in read_json_lines(folder.file(part))}
        for part in ("train", "validation")
    }
    assert len(asked["validation"]) == 5
    assert not asked["train"] & asked["validation"]


def test_the_held_out_questions_are_no_problems_to_learn_from(tmp_path):
    root = Path(__file__).resolve().parents[2]
    sources = (root / "config/sample.yaml").read_text()
    (tmp_path / "sources.yaml").write_text(
        sources.replace("sample/instructions.json", "sample/questions.jsonl")
    )
    config = (root / "config/config.yaml").read_text()
    config = config.replace("config/sample.yaml", str(tmp_path / "sources.yaml"))
    (tmp_path / "run.yaml").write_text(f"{config}\nrl: {{problems: world}}\n")
    with pytest.raises(UserError, match=r"rl\.problems is the file of evaluate\.questions"):
        load(tmp_path / "run.yaml")
