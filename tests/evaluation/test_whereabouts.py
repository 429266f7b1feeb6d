"""`nanoeuler` alone: it greets with the runs of the folder, and with commands to go on."""

import json
import re

import fabricated
import pytest

from nanoeuler.training.lock import FolderLock


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fabricate(root, stages=("pretrain", "sft", "sft_scratch")):
    """The folder of a made-up run that has just these stages."""
    config, folder = fabricated.fabricate(root, stages)
    sft = config["sft"] | {"enabled": "sft" in stages}
    sft["baseline_from_scratch"] = "sft_scratch" in stages
    config |= {"pretrain": {}, "sft": sft, "dpo": {"enabled": False}}
    (folder / "pipeline.json").write_text(json.dumps(fabricated.pipeline(config)))
    return folder


def unfinish(folder, step):
    """Take back what metrics.jsonl says behind `step` of pretraining."""
    path = folder / "pretrain" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["total_steps"] = 500
    kept = [line for line in lines if line.get("step", 0) <= step and "finished" not in line]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))


def test_an_empty_folder_gets_the_first_commands(command, here):
    status, out, err = command()
    assert (status, err) == (0, "")
    assert "runs in" not in out
    for typed in ("run", "chat models/novels", "plan config/small.yaml", "train my-novel.txt"):
        assert f"nanoeuler {typed}  " in out  # they are shipped, wherever this folder is
    assert "nanoeuler --help  " in out


def test_a_finished_run_is_to_be_talked_to_and_read(command, here):
    folder = fabricate(here)
    assert "made-up  trained; its report is not there yet" in command()[1]
    (folder / "report.html").write_text("")
    out = command()[1]
    assert "runs in results:\n  made-up  finished\n" in out
    assert re.search(r"results/made-up/report\.html +read its report", out)


def test_a_run_that_trains_is_told_from_one_that_has_stopped(command, here):
    folder = fabricate(here, ("pretrain",))
    unfinish(folder, 100)
    assert "made-up  pretrain stopped before its first checkpoint\n" in command()[1]
    for name in ("step-00000059/model.safetensors", "step-00000049/optimizer.safetensors"):
        path = folder / "pretrain" / "checkpoints" / name
        path.parent.mkdir(parents=True)
        path.touch()
    # it will go on from there, not from what it logged last nor from weights alone
    assert "made-up  pretrain at step 49 of 500 (10%), stopped\n" in command()[1]
    (here / "config").mkdir()
    (here / "config" / "made-up.yaml").write_text("")
    assert re.search(r"nanoeuler run config/made-up\.yaml +resume made-up\n", command()[1])
    with FolderLock(folder / "pretrain" / "checkpoints"):
        out = command()[1]
    assert "stopped" not in out
    assert re.search(r"made-up  pretrain at step 100 of 500 \(20%\), about 1m4[0-9]s left", out)
    assert "nanoeuler watch results/made-up  " in out


def test_a_damaged_run_does_not_hide_the_others(command, here):
    folder = fabricate(here)
    other = fabricate(here / "other").rename(here / "results" / "other")
    (other / "pretrain" / "metrics.jsonl").write_text("[]\n[]\n")
    out = command()[1]
    assert "  other    damaged: results/other/pretrain/metrics.jsonl" in out
    assert f"  {folder.name}  " in out
