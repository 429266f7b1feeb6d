"""Trials of an experiment in Snakemake: a stop, a failure, and budgets of minutes."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.models import DIARY
from tests.waiting import CEILING

CONFIG = """
run: tiny
corpus: {sources: [text.txt], validation_share: 0.1}
tokenizer: {vocab_size: 300}
model: {dim: 32, heads: 2, kv_heads: 1, layers: 2, ffn: 64, context: 32, mtp_heads: 1}
pretrain:
  {tokens: 9999999, batch_tokens: 256, learning_rate: 1.0e-2, warmup_steps: 2, validate_every: 50}
device: cpu
"""
CHANGES = ["--change", "pretrain.learning_rate=1e-5", "--change", "pretrain.init_from=nowhere"]
RATES = ("--change", "pretrain.learning_rate=2e-3", "--change", "pretrain={weight_decay: 0.2}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(DIARY, encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def start(folder, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "nanoeuler", *words],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": str(folder.parent / "cache")},  # of all these tests
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_arms_are_trained_by_the_same_seeds_and_judged_and_nothing_is_trained_twice(folder):
    asked = "tiny.yaml", "--tokens", "8000", "--seeds", "5,6", "--name", "mine", *RATES, "--json"
    done = start(folder, "experiment", *asked)
    out, err = done.communicate(timeout=CEILING)
    assert done.returncode == 0, err
    found = json.loads(out)
    assert found["folder"] == "results/experiments/mine"
    assert found["seeds"] == [5, 6]
    base, faster, decayed = found["arms"]
    assert base["name"] == "base"
    assert "verdict" not in base
    for arm in (faster, decayed):
        assert arm["tokens"] == base["tokens"] == 8000
        pairs = zip(arm["bits_per_byte"], base["bits_per_byte"], strict=True)
        first, second = (own - other for own, other in pairs)
        assert arm["difference"] == pytest.approx((first + second) / 2)
        assert arm["standard_error"] == pytest.approx(abs(first - second) / 2)
        assert arm["verdict"] in ("better", "worse", "undecided")
    assert faster["change"] == {"pretrain.learning_rate": 2e-3}
    trials = sorted((folder / found["folder"]).glob("*-seed*/pretrain/metrics.jsonl"))
    assert len(trials) == 6
    before = {path: path.stat().st_mtime_ns for path in trials}
    again = start(folder, "experiment", *asked)
    assert json.loads(again.communicate(timeout=CEILING)[0]) == found
    assert {path: path.stat().st_mtime_ns for path in trials} == before
    kept, _ = start(folder, "compare", found["folder"], "--json").communicate(timeout=CEILING)
    assert found.items() <= json.loads(kept).items()
    assert start(folder, "report", found["folder"]).wait(CEILING) == 0
    page = (folder / found["folder"] / "report.html").read_text(encoding="utf-8")
    assert ">learning_rate=2e-3</th>" in page
    assert f"{faster['difference']:+.4f} ± {faster['standard_error']:.4f}" in page
    (folder / found["folder"] / "verdicts.json").write_text(kept.replace("mine", "yours"))
    said = start(folder, "compare", found["folder"]).communicate(timeout=CEILING)[1]
    assert "its bytes are not those that `nanoeuler experiment` wrote" in said
    other = start(folder, "experiment", "tiny.yaml", "--tokens", "9000", *asked[3:])
    said = other.communicate(timeout=CEILING)[1]
    assert other.returncode == 1
    assert "results/experiments/mine: holds an experiment with another question" in said


def test_an_experiment_that_was_stopped_goes_on_and_tells_gains_from_failures(folder):
    words = ["experiment", "tiny.yaml", *CHANGES, "--tokens", "8000", "--level", "0.2"]
    first = start(folder, *words, "--json", "--name", "trial")
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("training "):
            first.send_signal(signal.SIGINT)
            break
    said = first.communicate(timeout=CEILING)
    assert first.returncode == 130, said

    again = start(folder, *words, "--json", "--name", "trial")
    out, err = again.communicate(timeout=CEILING)
    assert again.returncode == 1, err  # a trial has failed
    found = json.loads(out)
    base, slow, failed = found["arms"]
    assert len(base["bits_per_byte"]) >= 2
    assert slow["verdict"] == "worse"
    assert slow["difference"] > 0.2
    assert slow["change"] == {"pretrain.learning_rate": 1e-5}
    assert failed["verdict"] == "failed"
    trials = folder / found["folder"]
    assert "nowhere" in (trials / "init-from-nowhere-seed1/pretrain/train.log").read_text()
    assert not list(trials.glob("*/pretrain/model"))  # measurements are kept, weights not
    assert not list(trials.glob("base-*/pretrain/checkpoints"))

    listed, _ = start(folder, "runs", str(trials), "--json").communicate(timeout=CEILING)
    rates = {run["run"]: run["pretrain.learning_rate"] for run in json.loads(listed)}
    assert rates["base-seed1"] == 1e-2
    assert rates["learning-rate-1e-5-seed1"] == 1e-5


def test_minutes_become_tokens_by_speeds_that_alike_arms_share(folder):
    words = ["--change", "pretrain.weight_decay=0.3", "--change", "model.dim=64"]
    command = ["experiment", "tiny.yaml", *words, "--minutes", "0.005", "--seeds", "2", "--json"]
    process = start(folder, *command)
    out, err = process.communicate(timeout=CEILING)
    assert process.returncode == 0, err
    base, decay, wide = json.loads(out)["arms"]
    assert base["tokens"] == int(0.3 * base["tokens_per_second"])
    assert decay["tokens"] == base["tokens"]
    assert wide["tokens_per_second"] != base["tokens_per_second"]
    assert all(len(arm["bits_per_byte"]) == 2 for arm in (base, decay, wide))
    again = start(folder, *command)
    assert again.communicate(timeout=CEILING)[0] == out  # nothing is measured or trained again


def test_a_dry_run_says_what_would_be_measured_and_judges_nothing(folder):
    words = ["--change", "model.dim=64", "--minutes", "1", "--name", "dry", "--", "-n"]
    process = start(folder, "experiment", "tiny.yaml", *words)
    out, err = process.communicate(timeout=CEILING)
    assert process.returncode == 0, err
    assert "measure_speed" in err
    assert out == ""


def test_trials_of_a_text_that_was_changed_in_between_are_not_compared(folder):
    change = ["--change", "pretrain.weight_decay=0.3"]
    command = ["experiment", "tiny.yaml", *change, "--tokens", "4000", "--seeds", "2"]
    process = start(folder, *command, "--name", "mine")
    assert "weight_decay=0.3" in process.communicate(timeout=CEILING)[0]
    shutil.rmtree(folder / "results/experiments/mine/base-seed2")  # as if it had been stopped there
    with open(folder / "text.txt", "a", encoding="utf-8") as file:
        file.write("\n\nBea has left the harbour.")
    for _ in range(2):
        process = start(folder, *command, "--name", "mine")
        out, err = process.communicate(timeout=CEILING)
        assert process.returncode == 1
        assert "mine: the text was changed between its trials" in err
        assert out == ""
