"""Prompts that instructions or preferences hold out are learned from neither."""

import json

import pytest

from nanoeuler.errors import UserError
from nanoeuler.storage.record_folder import RecordFolder, prompt_key
from nanoeuler.training.pairs import encode_pairs
from nanoeuler.training.records import encode_records


def write(folder, **parts):
    folder.mkdir()
    for part, records in parts.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "manifest.json").write_text("{}")
    return folder / "manifest.json"


def record(prompt, **more):
    return {"instruction": prompt, "input": "", "output": f"It is {prompt}.", **more}


def pair(prompt, **more):
    return {"instruction": prompt, "input": "", "chosen": "Yes.", "rejected": "No!", **more}


@pytest.fixture
def shared(tmp_path):
    """Prompts that both have, of which each holds out others."""
    talk = {"earlier": [record("red")]}
    instructions = write(
        tmp_path / "instructions",
        train=[record("red"), record("green"), record("more", **talk), record("red", input="b")],
        validation=[record("blue"), record("white")],
    )
    preferences = write(
        tmp_path / "preferences",
        train=[pair("blue"), pair("black"), pair("more", earlier=[record("white")])],
        validation=[pair("red"), pair("grey")],
    )
    return instructions, preferences


def test_prompts_that_the_other_data_hold_out_are_not_learned(
    shared, tmp_path, data, trainer, command
):
    from nanoeuler.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(data / "tokenizer.json")
    instructions, preferences = shared
    tuning = RecordFolder(instructions, "instructions")
    aligning = RecordFolder(preferences, "preferences")
    given = tokenizer, "alpaca", 300
    _, fit = encode_records(tuning.file("train"), *given, aligning.held_out_prompts())
    assert fit.records == 2  # green, and red with another input
    _, pair_fit = encode_pairs(aligning.file("train"), *given, tuning.held_out_prompts())
    assert pair_fit.pairs == 1  # black
    status, _, said = command(
        *("fit", "--config", json.dumps(trainer.config), "--tokenizer", data / "tokenizer.json"),
        *("--instructions", instructions, "--preferences", preferences),
        *("--output", tmp_path / "fit.json"),
    )
    assert status == 0
    counts = json.loads((tmp_path / "fit.json").read_text())
    assert (counts["sft"]["records"], counts["dpo"]["pairs"]) == (2, 1)
    assert "instructions/train.jsonl: 2 records left out, whose prompts are held out" in said
    assert "preferences/train.jsonl: 2 records left out, whose prompts are held out" in said


@pytest.mark.parametrize(
    "prompt", ["WHERE IS THE CAFÉ?", "Where  is\nthe cafe\u0301?", "where is the café? "]
)
def test_a_prompt_in_other_letters_is_the_same_prompt(prompt):
    assert prompt_key(record(prompt)) == prompt_key(record("Where is the café?"))
    assert prompt_key(record(prompt, input=None)) != prompt_key(record(prompt, input="x"))


def test_the_stages_leave_them_out(shared, trainer, tuned):
    instructions, preferences = map(str, shared)
    said = trainer.run("sft", "--preferences", preferences)
    assert "left out" not in said  # of other prompts
    alone = trainer.weights("sft")
    said = trainer.run("sft", "--instructions", instructions, "--preferences", preferences)
    assert "2 records left out, whose prompts are held out of the other data" in said
    assert trainer.weights("sft") != alone
    options = ["--parent", str(tuned), "--preferences", preferences]
    said = trainer.run("dpo", *options, "--instructions", instructions)
    assert "2 records left out, whose prompts are held out of the other data" in said


def test_data_of_which_the_other_holds_out_everything_are_refused(shared, tmp_path, data):
    from nanoeuler.tokenizer import Tokenizer

    instructions, _ = shared
    path = RecordFolder(instructions, "instructions").file("validation")
    held_out = RecordFolder(instructions, "instructions").held_out_prompts()
    with pytest.raises(UserError, match="the prompts of all its 2 records are held out"):
        encode_records(path, Tokenizer.load(data / "tokenizer.json"), "alpaca", 300, held_out)
