"""Whether a model has learned to call the calculator is a fact of its folder."""

from contextlib import nullcontext

import pytest

from nanoeuler.corpus.instructions import write_splits
from nanoeuler.errors import UserError
from nanoeuler.inference.api import load
from nanoeuler.model.files import CONFIG, check_description, load_model
from nanoeuler.storage.files import read_json
from tests.training.conftest import Trainer

SUM = {"instruction": "Add 2 and 3.", "input": "", "output": "2+3 = <<2+3=5>>5"}


@pytest.fixture(scope="module")
def calling(data, tmp_path_factory):
    """A stage that was tuned on records with calls, in which one call is wrong."""
    folder = tmp_path_factory.mktemp("calling")
    for name in ("tokens", "tokenizer.json", "corpus", "preferences", "problems"):
        (folder / name).symlink_to(data / name)
    wrong = SUM | {"output": "2+3 = <<2+3=6>>6", "instruction": "Add them."}
    records = {"train": [SUM, wrong] * 20, "validation": [SUM]}
    write_splits(folder / "instructions", records, {"version": 1, "name": "sums"}, "records")
    trainer = Trainer(folder, tmp_path_factory.mktemp("run"))
    trainer.config["sft"] |= {"epochs": 1, "keep": "final"}
    said = trainer.run("sft")
    return trainer, said


def test_records_with_calls_make_a_model_that_calls(calling):
    trainer, said = calling
    assert "20 calls; 20 others say what the calculator does not" in said
    folder = trainer.output / "sft" / "model"
    assert load_model(folder).calculator
    assert read_json(folder / CONFIG, 10**6)["nanoeuler"]["calculator"] is True
    model = load(folder, device="cpu")
    assert model.writer.allowed_V[list(model.tokenizer.call_ids)].all()


def test_later_stages_inherit_it(calling):
    trainer, _ = calling
    parent = ["--parent", str(trainer.output / "sft" / "model")]
    trainer.config["dpo"] |= {"epochs": 1, "keep": "final"}
    trainer.run("dpo", *parent)
    assert load_model(trainer.output / "dpo" / "model").calculator
    trainer.config["rl"] |= {"keep": "final", "reward": "number"}
    problem = {"instruction": "Add 2 and 3.", "input": "", "answer": "5"}
    parts = {"train": [problem] * 24, "validation": [problem]}
    write_splits(trainer.output / "sums", parts, {"version": 1, "name": "sums"}, "records")
    data = ["--problems", str(trainer.output / "sums" / "manifest.json")]
    trainer.run("rl", "--parent", str(trainer.output / "dpo" / "model"), *data)
    assert load_model(trainer.output / "rl" / "model").calculator


def test_other_models_call_nothing_and_their_folders_say_nothing_of_it(tuned):
    assert not load_model(tuned).calculator
    assert "calculator" not in read_json(tuned / CONFIG, 10**6)["nanoeuler"]
    model = load(tuned, device="cpu")
    assert not model.writer.allowed_V[list(model.tokenizer.call_ids)].any()


def test_a_folder_says_true_or_false(tmp_path):
    path = tmp_path / CONFIG
    for given, word in ((1, "calculator must be true or false"), (False, None)):
        with nullcontext() if word is None else pytest.raises(UserError, match=word):
            check_description(path, {"template": None, "stage": "sft", "calculator": given})
