"""`nanoeuler verify` trains parts of a tiny run again."""

import json
import math
import shutil
from pathlib import Path

import pytest

from nanoeuler.cli import main
from nanoeuler.cli.verification import told
from nanoeuler.config import read_resolved, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.evaluation.verification import Verified
from nanoeuler.storage.files import sha256_file
from nanoeuler.tracing.runs import configuration_in
from tests.tracing.conftest import run as run  # a fixture
from tests.tracing.conftest import train


def verify(capsys, *arguments):
    status = main(["verify", *map(str, arguments), "--device", "reference", "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def copied(run, tmp_path) -> Path:
    """The folder of the run, to be damaged."""
    return Path(shutil.copytree(run.paths.results, tmp_path / "copied"))


@pytest.mark.parametrize("stage", ["pretrain", "sft", "dpo"])
def test_every_stage_gives_its_numbers_and_its_model_again(run, capsys, stage):
    before = {path: path.stat().st_mtime_ns for path in Path(run.paths.results).rglob("*")}
    status, found = verify(capsys, run.paths.results, stage, "--steps", "0:")
    assert status == 0
    assert found["differs"] is None
    assert found["values"] >= 3 * found["last"] / 10
    assert found["model"] == sha256_file(run.model(stage) / "model.safetensors")
    assert {path: path.stat().st_mtime_ns for path in Path(run.paths.results).rglob("*")} == before


@pytest.mark.parametrize("factor", [1 - 1e-15, math.nan])
def test_a_number_that_was_made_up_is_told_with_its_step(copied, capsys, monkeypatch, factor):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    metrics = copied / "pretrain/metrics.jsonl"
    header, *lines = metrics.read_text().splitlines()
    header = json.dumps(json.loads(header) | {"check": {"engine": "cuda"}})
    number, line = next(
        (number, json.loads(line)) for number, line in enumerate(lines) if '"loss"' in line
    )
    better = line["loss"] * factor
    lines[number] = json.dumps(line | {"loss": better})
    metrics.write_text("\n".join([header, *lines]) + "\n")
    status, found = verify(capsys, copied, "--steps", f"0:{line['step']}")
    assert status == 1
    assert found["differs"] == (
        f"step {line['step']}: loss {line['loss']!r}, in the run {better!r}"
    )
    engine, threads = found["elsewhere"]
    assert found.pop("version") == 1
    assert "resumed with another number of ranks" in told(Verified(**found))
    assert engine == "engine cuda → reference"
    assert threads.startswith("threads ")
    assert threads.endswith(" → 7")


def test_a_part_begins_with_the_checkpoint_before_it(run, capsys):
    config = read_resolved(Path(run.paths.configuration)) | {"run": "long"}
    config["pretrain"] |= {"schedule": "wsd"}
    paths = Paths(config)
    write_resolved(paths.configuration, config)
    given = "--config", paths.configuration, "--tokens", paths.tokens, "--device", "reference"
    output = paths.stage("pretrain")
    assert main(["pretrain", *given, "--tokenizer", paths.tokenizer, "--output", output]) == 0
    kept = sorted(int(path.name[5:]) for path in Path(output).glob("checkpoints/step-*"))
    decay, end = kept
    capsys.readouterr()
    status, found = verify(capsys, paths.results, "--steps", f"{decay + 1}:")
    assert (status, found["first"], found["last"], found["seed"]) == (0, decay, end, False)
    assert found["model"]


def test_rows_are_computed_as_the_run_did_and_not_as_its_configuration_now_says(copied, capsys):
    config = configuration_in(copied)
    config["pretrain"] |= {"micro_batch_rows": 1, "recompute": True}
    write_resolved(copied / "configuration.json", config)
    assert verify(capsys, copied)[0] == 0


def test_other_weights_than_those_that_were_trained_are_told(copied, capsys):
    weights = copied / "sft/model/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main(["accept", str(weights.parent)]) == 0  # somebody's own
    capsys.readouterr()
    status, found = verify(capsys, copied, "sft", "--steps", "0:")
    assert status == 1
    assert found["model"] is None
    assert found["differs"].endswith(f"other weights than {weights}")
    metrics = copied / "sft/metrics.jsonl"
    *lines, finished = metrics.read_text().splitlines()
    assert "finished" in json.loads(finished)
    metrics.write_text("\n".join(lines) + "\n")  # so the model is of an earlier training
    status, found = verify(capsys, copied, "sft", "--steps", "0:")
    assert (status, found["model"]) == (0, None)


def test_a_stage_of_fewer_than_twenty_steps_is_verified_whole_by_default(copied, capsys):
    metrics = copied / "dpo/metrics.jsonl"
    header, *lines = metrics.read_text().splitlines()
    lines = [line for line in lines if json.loads(line)["step"] < 20]  # as if it was stopped there
    metrics.write_text("\n".join([header, *lines]) + "\n")
    end = json.loads(lines[-1])["step"]
    status, found = verify(capsys, copied, "dpo")
    assert (status, found["last"]) == (0, end)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere: not the folder of a run (no configuration.json)"),
        (["copied", "rl"], "copied: has no stage 'rl'; it has pretrain, sft, dpo"),
        (["copied", "sft", "dpo"], "verify: give the folder of a run and one stage"),
        (["copied", "--steps", "20"], "--steps '20': give two steps, such as 100:120, or 0:"),
        (["copied", "--steps", "70:80"], "has the steps 1 to 75; give a first and a last of them"),
        (["copied", "--steps", "20:20"], "--steps 20:20: "),
        (["copied", "--steps", "0:9"], "wrote no number of these steps, which could be compared; "),
    ],
)
def test_a_mistake_is_one_sentence(copied, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(copied.parent)
    assert main(["verify", *words, "--device", "reference"]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert sentence in said


def test_data_that_lies_elsewhere_is_told(copied, capsys):
    path = copied / "configuration.json"
    write_resolved(path, read_resolved(path) | {"data_dir": "elsewhere"})  # as in another folder
    assert main(["verify", str(copied), "--device", "reference"]) == 1
    said = capsys.readouterr().err
    assert f"no such file, of which {copied} was made; go to the folder where" in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fingerprint": "0" * 64}, "with other data, settings, seed or parent than are here now"),
        ({"ranks": 2}, "was trained by 2 ranks, whose sums have an order of their own; give"),
        ({"total_steps": 9}, "was trained for 9 steps, and its configuration now asks for"),
        ({"micro_batch_rows": 0}, "line 1: not what its stage wrote ('micro_batch_rows' cannot be"),
    ],
)
def test_what_cannot_give_the_same_is_refused(copied, capsys, change, sentence):
    metrics = copied / "dpo/metrics.jsonl"
    header, *lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([json.dumps(json.loads(header) | change), *lines]) + "\n")
    assert main(["verify", str(copied), "dpo", "--device", "reference"]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 1])
def test_a_stage_that_has_written_nothing_is_told(copied, capsys, kept):
    metrics = copied / "pretrain/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:kept]))
    assert main(["verify", str(copied), "--device", "reference"]) == 1
    assert "metrics.jsonl tells of no training; run it first" in capsys.readouterr().err


def trained_with_adapters(copied: Path) -> Path:
    """The folder of adapters of a run's fine-tuning, which hands on the best of several models."""
    config = configuration_in(copied) | {"run": copied.name, "results_dir": str(copied.parent)}
    lora = {"rank": 2, "alpha": None, "targets": "all", "dropout": 0.1}
    config["sft"] |= {"lora": lora, "keep": "best", "validate_every": 3}
    config["sft"] |= {"minimum_learning_rate_share": 1.0, "learning_rate": 0.3}
    paths = Paths(config)
    write_resolved(paths.configuration, config)
    shutil.rmtree(copied / "sft")
    train(paths, "sft")
    return copied / "sft/adapter"


def test_adapters_are_compared(copied, capsys):
    folder = trained_with_adapters(copied)
    weights, keys = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    capsys.readouterr()
    status, found = verify(capsys, copied, "sft", "--steps", "0:")
    assert (status, found["differs"]) == (0, None)
    config = json.loads((folder.parent / "model/config.json").read_text())
    assert config["nanoeuler"]["info"]["step"] < found["last"]
    assert found["adapter"] == sha256_file(weights)
    assert found["model"] == sha256_file(folder.parent / "model/model.safetensors")
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    status, found = verify(capsys, copied, "sft", "--steps", "0:")
    assert (status, found["adapter"], found["model"]) == (1, None, None)
    assert found["differs"].endswith(f"other adapters than {weights}")
    weights.write_bytes(good)
    keys.write_text(keys.read_text().replace('"lora_alpha": 4', '"lora_alpha": 5'))
    status, found = verify(capsys, copied, "sft", "--steps", "0:")
    assert status == 1
    assert found["differs"].endswith(f"other adapters than {keys}")
