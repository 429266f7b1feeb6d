"""Problems with checkable answers: what is read, and what is left out."""

import json
import re
from pathlib import Path

import pytest

from nanoeuler.config import load
from nanoeuler.config.stages import stages_of
from nanoeuler.corpus.dialogue import Unusable
from nanoeuler.corpus.problems import prepare, read_problem
from nanoeuler.corpus.sources.data_sets import DECLARED
from nanoeuler.errors import UserError
from nanoeuler.storage.record_folder import RecordFolder, read_json_lines

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_sums_that_base_has_as_an_option_are_taken_by_both_stages(tmp_path):
    text = (ROOT / "config/base.yaml").read_text()
    chosen = re.sub(r"^( *)# (?=instructions: |rl:|  \w+: )", r"\1", text, flags=re.MULTILINE)
    assert text.count("\n") == chosen.count("\n")
    (tmp_path / "run.yaml").write_text(chosen.replace("config/sources", f"{ROOT}/config/sources"))
    config = load(tmp_path / "run.yaml")
    assert [stage.name for stage in stages_of(config)] == ["pretrain", "sft", "dpo", "rl"]
    learned = [data.entry(config, config[data.stage][data.name]) for data in DECLARED[:3:2]]
    addresses = [{file["url"] for file in entry.get("mixture", [entry])} for entry in learned]
    assert addresses[1] < addresses[0]
    assert config["rl"]["batch_tokens"] == 16 * config["rl"]["group"] * config["model"]["context"]


def test_the_held_out_questions_are_no_problems_to_learn_from(tmp_path):
    sources = (ROOT / "config/sample.yaml").read_text()
    (tmp_path / "sources.yaml").write_text(
        sources.replace("sample/problems.jsonl", "sample/questions.jsonl")
    )
    config = (ROOT / "config/config.yaml").read_text()
    config = config.replace("config/sample.yaml", str(tmp_path / "sources.yaml"))
    (tmp_path / "run.yaml").write_text(config)
    with pytest.raises(UserError, match=r"rl\.problems is the file of evaluate\.questions"):
        load(tmp_path / "run.yaml")
