"""Problems with checkable answers: what is read, and what is left out."""

import json

import pytest

from nanoeuler.corpus.dialogue import Unusable
from nanoeuler.corpus.problems import prepare, read_problem
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
