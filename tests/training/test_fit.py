"""What fits into the context is known before training, and is what the stages find."""

import json

import pytest

from nanoeuler.training.parents import UNTUNED_TEMPLATE


@pytest.fixture
def fit(command, trainer, data, tokenizer, tmp_path):
    """fit(*options) → (exit status, what was said, the counts)"""

    def run(*kinds):
        output = tmp_path / "fit.json"
        given = [part for kind in kinds for part in (f"--{kind}", data / kind / "manifest.json")]
        config = "--config", json.dumps(trainer.config)
        files = "--tokenizer", data / "tokenizer.json", "--output", output
        status, _, said = command("fit", *config, *files, *given)
        return status, said, json.loads(output.read_text()) if output.exists() else None

    return run


def fitting(said, stage):
    """The line of a stage about the records that it trains on."""
    [line] = [line for line in said.splitlines() if line.startswith("fit ") and stage in line]
    return line


def test_the_counts_are_those_of_the_stages(fit, trainer, tuned):
    trainer.config["sft"]["context"], trainer.config["dpo"]["context"] = 146, 146  # where some fit
    trainer.config["dpo"]["minimum_fit_share"] = 0.0
    trainer.config["sft"] |= {"minimum_fit_share": 0.0, "epochs": 1}
    stages = {"instructions": ("sft", " records "), "preferences": ("dpo", "dpo: ")}
    for kind, (stage, words) in stages.items():  # their data share prompts: test_apart.py
        status, said, counts = fit(kind)
        assert status == 0
        parent = ["--parent", str(tuned)] if stage == "dpo" else []
        assert fitting(said, words) == fitting(trainer.run(stage, *parent), words)
        found = counts[stage]
        assert 0 < found["whole"] < found.get("records", found.get("pairs"))


@pytest.mark.parametrize(("stage", "kind"), [("sft", "instructions"), ("dpo", "preferences")])
def test_a_context_that_holds_too_few_is_refused(fit, trainer, stage, kind):
    trainer.config[stage]["context"] = 20
    status, said, counts = fit("instructions", "preferences")
    assert status == 1
    assert f"fit whole into {stage}.context = 20 tokens; raise {stage}.context" in said
    assert counts is None
    other = {"sft": "preferences", "dpo": "instructions"}[stage]
    assert fit(other)[0] == 0, f"no {kind}, no complaint"


def test_pairs_are_framed_with_the_template_of_the_model_that_alignment_starts_from(
    fit, trainer, tuned
):
    def prompt_lengths(**sections):
        for name, section in sections.items():
            trainer.config[name] |= section
        trainer.config["dpo"]["context"] = 100
        return fit("preferences")[2]["dpo"]["whole"]

    trainer.config["dpo"]["minimum_fit_share"] = 0.0
    alpaca = prompt_lengths(sft={"template": "alpaca"})
    chat = prompt_lengths(sft={"template": "chat"})
    assert chat > alpaca, "its prompts are shorter"
    assert prompt_lengths(dpo={"init_from": str(tuned)}) == alpaca
    assert prompt_lengths(dpo={"init_from": "not/there"}) == chat, "the stage will say it"
    without = prompt_lengths(sft={"enabled": False}, dpo={"init_from": None})
    assert (without == alpaca) == (UNTUNED_TEMPLATE == "alpaca")
