"""The model card: a README that a model hub reads, from the facts of the report."""

import ast
import json
import re
import shlex

import fabricated
import pytest
import yaml

from nanoeuler.cli import main
from nanoeuler.evaluation.card import card
from nanoeuler.evaluation.report.gather import gather


@pytest.fixture
def run(tmp_path):
    return gather(*fabricated.fabricate(tmp_path, stages=("pretrain", "sft", "dpo")))


def front(text: str) -> dict:
    opening, matter, _ = text.split("---\n", 2)
    assert opening == ""
    return yaml.safe_load(matter)


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The table below a heading: first cell → the others."""
    lines = [
        line
        for line in text.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert len({len(row) for row in cells}) == 1
    return {row[0]: row[1:] for row in cells}


def test_it_says_what_the_report_says(run):
    text = card(run)
    assert text.partition("\n# ")[2].startswith(
        "made-up\n\nA language model of 1.05 M parameters, "
        "trained from random weights on 4.04 MB of text"
    )
    learned = rows(text, "What it learned from")
    assert learned["fineweb"] == ["1,204 documents, 1.73 MB", "ODC-By 1.0"]
    assert learned["alpaca instructions"] == ["2,412 records", "CC BY-NC 4.0"]
    assert learned["farm preferences"] == ["1,234 pairs", "CC BY-NC 4.0"]
    assert rows(text, "Training")["aligned"][:3] == ["100", "410 k", "1 min 10 s"]
    scores = rows(text, "Scores")
    assert scores["bits per byte, gutenberg"] == ["1.734", "1.912", "1.953", "2.613 bigram"]
    assert scores["hellaswag acc_norm, 1,000 items"] == [
        "27.4 % ± 1.1",
        "29.1 % ± 1.1",
        "29.1 % ± 1.1",
        "25.0 % at random",
    ]
    assert "nanoeuler chat dpo/model" in text
    assert "of 9 tensors the worst is off by 4.5 × 10⁻⁹" in text
    assert (
        "What the engine cpu computes in fp32 on a processor agrees with them: of 1 tensors the "
        "one nearest to its limit is off by 1.7 × 10⁻⁶, the limit is " in unwrapped(text)
    )


def test_it_says_how_far_the_bits_of_stages_go(run):
    assert "same bits" not in card(run)
    for stage, mode in (("pretrain", "chip"), ("sft", "ranks")):
        run.stages[stage].header["config"] = {stage: {"reproducible": mode}}
    text = unwrapped(card(run))
    assert "same bits (pretrained): who trains again" in text
    assert "on any x86-64 processor with AVX2 and FMA, and on arm64 (compared under" in text
    assert "Not on a GPU, where cuBLASLt" in text
    assert "same bits (fine-tuned): who trains again" in text
    assert "on this model of processor. Not on others, for which BLAS has other kernels" in text


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_it_says_which_half_of_the_check_failed(run):
    run.gradients["engine"]["passed"] = run.gradients["passed"] = False
    text = unwrapped(card(run))
    assert "The gradients of its code agree with numerical derivatives" in text
    assert "on a processor DOES NOT agree with them" in text
    run.gradients["rows"][0]["ok"] = False
    assert "The gradients of its code DO NOT agree with numerical" in unwrapped(card(run))
    assert "commit `0123456789abcdef0123456789abcdef01234567`" in text
    assert "## Limits" in text


def test_the_limits_are_those_of_the_last_model(run):
    """Fine-tuning may use longer rows than pretraining, whose windows all are measured in."""
    run.evaluations["dpo"]["model"] = {"context": 1024}
    assert (
        "- It was measured in windows of 128 tokens. The aligned model sees 1,024 at most;"
        in card(run)
    )


def test_it_names_the_family(run):
    assert "A decoder of the Llama family (RMSNorm," in unwrapped(card(run))
    for evaluation in run.evaluations.values():
        evaluation["model"] = {"family": "gpt2", "dim": 96, "context": 128}
    assert "A decoder of the GPT-2 family (LayerNorm," in unwrapped(card(run))


def test_weights_that_were_given_are_not_called_random(run):
    assert "trained from random weights on 4.04 MB" in card(run)
    run.stages["pretrain"].header["config"] = {
        "pretrain": {"init_from": "results/other/pretrain/model"}
    }
    assert "trained from the weights of another run on 4.04 MB" in card(run)


def test_a_model_that_was_the_best_early_has_read_what_was_read_by_then(run):
    assert "1.05 M parameters that has read 2.05 M tokens" in unwrapped(card(run))
    run.stages["pretrain"].model_step = run.stages["pretrain"].last["step"] // 2
    text = unwrapped(card(run))
    assert "2 min 14 s; the model after 1.02 M was the best on held-out text)" in text
    assert "1.05 M parameters that has read 1.02 M tokens" in text


def test_little_text_of_one_s_own_is_no_success(run):
    little = "teach letters and short words: many words that the model writes will not exist. What"
    assert little not in card(run), "books and pages"
    diary = {**run.sources["gutenberg"], "licence": "own"}
    diary["train"] = {"documents": 4, "bytes": 35_000, "sha256": "0" * 64}
    run.corpus["sources"] = {"diary": diary}
    assert f"35 kB of text {little}" in unwrapped(card(run))
    assert "nanoeuler train TEXT --from models/stories" in unwrapped(card(run))
    run.stages["pretrain"].header["config"] = {"pretrain": {"init_from": "models/stories"}}
    assert little not in unwrapped(card(run))


def test_what_the_data_forbids_is_in_the_front_matter_and_said_aloud(run):
    text = card(run)
    assert front(text) == {
        "library_name": "nanoeuler",
        "pipeline_tag": "text-generation",
        "language": ["en"],
        "license": "cc-by-nc-4.0",
        "tags": ["nanoeuler", "dpo", "pretrain", "sft"],
    }
    trained = "A model trained on alpaca instructions and farm preferences"
    assert f"**{trained} is for non-commercial use only.**" in text
    run.stages["dpo"].evaluation["model_info"]["preferences"]["licence"] = (
        "research only, non-commercial"
    )
    assert front(card(run))["license"] == "other"
    for stage in run.stages.values():
        stage.evaluation["model_info"] = {}
    assert "license" not in front(card(run))  # the owner's choice


def test_data_sets_of_a_hub_are_named_when_they_were_used(run):
    repository = "https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu"
    address = f"{repository}/resolve/87f0/sample/10BT/000.parquet"
    sources = {
        "fineweb": {"shards": [{"url": address}, {"url": address}]},
        "instructions": {"world": {"url": "data/world.json"}},
    }
    run.config = run.config | {
        "sources": sources
        | {"preferences": {"other": {"url": address.replace("fineweb-edu", "unused")}}}
    }
    assert front(card(run))["datasets"] == ["HuggingFaceFW/fineweb-edu"]
    del run.corpus["sources"]["fineweb"]
    assert "datasets" not in front(card(run))


def test_own_text_claims_no_language(run):
    run.corpus["sources"]["my-novel"] = run.corpus["sources"].pop("gutenberg")
    assert "language" not in front(card(run))


def test_texts_cannot_break_the_front_matter_or_a_table(run):
    run.stages["my: [stage"] = run.stages.pop("dpo")
    run.stages["sft"].evaluation["answers"]["commonest_answer"]["answer"] = "a | b\n<i>c</i>"
    run.stages["pretrain"].evaluation["answers"]["commonest_answer"]["answer"] = "a | b\nc"
    text = card(run)
    assert "my: [stage" in front(text)["tags"]
    assert "always “a \\| b c”" in text


def test_half_a_run_has_half_a_card(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain",))
    (folder / "evaluation" / "pretrain.json").unlink()
    path = folder / "pretrain" / "metrics.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:20]))
    text = card(gather(config, folder))
    assert "pretrained, not finished" in rows(text, "Training")
    assert "## Scores" not in text
    assert front(text)["tags"] == ["nanoeuler", "pretrain"]
    assert "## How to use it" not in text  # a stage writes its model last
    empty = card(gather({"run": "made-up"}, folder))
    assert "## What it learned from" not in empty


def test_only_models_that_are_there_are_offered(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft"))
    (folder / "evaluation" / "sft.json").unlink()
    path = folder / "sft" / "metrics.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:20]))
    text = card(gather(config, folder))
    assert "The models are `pretrain/model` (pretrained)." in text
    assert "generate pretrain/model" in text


def test_the_command_writes_it(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    arguments = [
        "--config",
        json.dumps(config),
        "--run",
        str(folder),
        "--output",
        str(folder / "report.html"),
        "--card",
        str(folder / "README.md"),
    ]
    assert main(["report", *arguments]) == 0
    assert "# made-up" in (folder / "README.md").read_text(encoding="utf-8")


def test_its_commands_can_be_pasted_whatever_the_prompt(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain",))
    config["evaluate"] = config.get("evaluate", {}) | {
        "prompts": ['The `moon` cost $5, didn\'t\n"it"?']
    }
    run = gather(config, folder)
    run.evaluations["pretrain"]["template"] = None
    shell, python = re.findall(r"```(?:sh|python)\n(.*?)\n```", card(run), re.DOTALL)[:2]
    assert shlex.split(shell)[-1] == config["evaluate"]["prompts"][0]
    call = ast.parse(python).body[-1].value.args[0]
    assert call.args[0].value == config["evaluate"]["prompts"][0]


def test_no_value_becomes_a_tag_a_block_or_an_order_to_a_terminal(run):
    sources = run.corpus["sources"]
    sources["gutenberg"]["licence"] = "<script>alert(1)</script>CC & <b>"
    sources["fineweb"]["licence"] = "&lt;script src=x&gt; \x1b[2J\u202e"
    run.config["evaluate"]["prompts"] = ["a\n```\n<script>alert(2)</script>\n```"]
    run.stages["pretrain"].header["provenance"] |= {"commit": "<img src=x>", "dirty": False}
    run.evaluations["dpo"]["template"] = None
    text = card(run)
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "alert(1)" in outside
    assert "alert(2)" not in outside
    assert "<" not in outside
    assert "\x1b" not in text
    assert "\u202e" not in text
