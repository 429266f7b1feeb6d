"""The real pipeline, on a sample smaller than the demo's: from raw text to a model that answers."""

import json
import os
import subprocess
import sys

import pytest
from stub_checkout import CI

from nanoeuler.storage.files import sha256_file
from nanoeuler.storage.timing import read_times
from tests.rounding import machine
from tests.waiting import CEILING

WEIGHTS = {
    "emeraldrapids, 2 cores, NumPy 2.4.6, Numba 0.68.1": {
        "pretrain": "86a20609d508efa2",
        "sft": "579619733a76a73c",
        "sft_scratch": "910e337318791a71",
        "dpo": "ed348fa554fbd9b8",
    }
}
"""SHA-256 of each stage's weights, recorded on the machines named here."""


@pytest.mark.slow
def test_every_stage_leaves_what_it_promises(pipeline):
    results = pipeline.path / "results/ci"
    assert json.loads((results / "gradients.json").read_text())["passed"] is True
    metrics = json.loads((results / "metrics.json").read_text())
    assert set(metrics["stages"]) == {"pretrain", "sft", "sft_scratch", "dpo"}
    page = (results / "report.html").read_text()
    assert "sft_scratch" in page
    assert "<script src" not in page
    assert "## Limits" in (results / "README.md").read_text()
    for stage in ("pretrain", "sft", "sft_scratch", "dpo"):
        assert {file.name for file in (results / stage / "model").iterdir()} == {
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "README.md",
            ".nanoeuler",
        }


@pytest.mark.slow
def test_the_weights_of_every_stage_are_those_of_the_recorded_code(pipeline):
    if machine() not in WEIGHTS:
        pytest.skip(f"no weights are recorded for {machine()}")
    for stage, expected in WEIGHTS[machine()].items():
        weights = pipeline.path / "results/ci" / stage / "model/model.safetensors"
        assert sha256_file(weights).startswith(expected), stage


@pytest.mark.slow
def test_the_report_knows_every_rule_and_its_time(pipeline):
    results = pipeline.path / "results/ci"
    kept = json.loads((results / "pipeline.json").read_text())
    rules = kept["rules"]
    assert kept["config"]["run"] == "ci"
    assert rules["learn_bpe"] == {"jobs": 1, "needs": ["build_corpus"]}
    assert rules["evaluate_model"]["jobs"] == 4
    assert {"evaluate_model", "check_gradients", "tokenize"} <= set(rules["write_report"]["needs"])
    times = read_times(results)
    assert times.keys() == rules.keys() - {"all"}
    assert {rule: len(attempts) for rule, attempts in times.items()} == {
        rule: entry["jobs"] for rule, entry in rules.items() if rule != "all"
    }
    page = (results / "report.html").read_text()
    assert all(f'<th scope="row">{rule}</th>' in page for rule in rules.keys() - {"all"})
    assert ">earlier</td>" not in page
    stages = json.loads((results / "metrics.json").read_text())["stages"]
    trajectory = stages["pretrain"]["trajectory"]
    assert len(trajectory["norm"]) == 2 * trajectory["layers"] + 1 == 5


@pytest.mark.slow
def test_a_second_run_of_the_whole_does_nothing(pipeline):
    assert pipeline.planned(*CI) == {}


@pytest.mark.slow
def test_the_model_answers_on_the_command_line(pipeline):
    command = [
        *(sys.executable, "-m", "nanoeuler", "generate", "--model", "results/ci/sft/model"),
        *("--prompt", "Where?", "--max-tokens", "5", "--temperature", "0"),
    ]
    environment = os.environ | {"PYTHONPATH": str(pipeline.path)}
    subprocess.run(
        command,
        cwd=pipeline.path,
        env=environment,
        check=True,
        capture_output=True,
        timeout=CEILING,
    )


@pytest.mark.slow
def test_another_learning_rate_gives_other_weights_and_the_old_one_the_old_weights(pipeline):
    weights = pipeline.path / "results/ci/sft/model/model.safetensors"
    first = sha256_file(weights)
    pipeline.run("sft", *CI, "--config", "sft={learning_rate: 1e-3}")
    assert sha256_file(weights) != first
    pipeline.run("sft", *CI)
    assert sha256_file(weights) == first
