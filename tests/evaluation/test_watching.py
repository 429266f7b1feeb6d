"""`nanoeuler watch`: a page that follows a run until it is finished."""

import subprocess
import sys

import fabricated
from test_report import Outline

from nanoeuler.cli import main
from tests.waiting import wait_until


def test_the_page_follows_a_run_to_its_end(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, ("pretrain", "sft"))
    config["sft"] |= {"baseline_from_scratch": False}
    config["dpo"] |= {"enabled": False}
    fabricated.write(folder / "pipeline.json", fabricated.pipeline(config))
    tuning = folder / "sft" / "metrics.jsonl"
    header, *lines = fabricated.tuning_lines("sft", 0.41, 0.9)
    header["total_steps"] = 180
    scores = folder / "evaluation" / "sft.json"
    evaluation = scores.read_text()
    scores.unlink()
    fabricated.write_metrics(tuning, [header, lines[0]])
    page, log = folder / "watch.html", tmp_path / "watch.log"
    command = [sys.executable, "-m", "nanoeuler", "watch", str(folder), "--every", "1"]
    with open(log, "wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            wait_until(page.exists, process, log)
            first = page.read_text(encoding="utf-8")
            fabricated.write_metrics(tuning, [header, *lines])
            scores.write_text(evaluation)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert "Training is not finished yet: fine-tuned." in Outline(first).text
    assert '<meta name="reload" data-seconds="1">' in first
    last = page.read_text(encoding="utf-8")
    assert "Training is not finished yet" not in Outline(last).text
    assert "reload" not in last
    told = log.read_text(encoding="utf-8")
    assert "pretrain finished; sft at step 5 of 180, loss " in told
    assert "pretrain finished; sft finished\n" in told


def test_a_file_that_stays_damaged_ends_it(tmp_path, capsys):
    _, folder = fabricated.fabricate(tmp_path)
    (folder / "gradients.json").write_text("{")
    assert main(["watch", str(folder), "--every", "1"]) == 1
    assert "gradients.json" in capsys.readouterr().err
    assert not (folder / "watch.html").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "nowhere")]) == 1
    assert "no such folder; give that of a run" in capsys.readouterr().err
    _, folder = fabricated.fabricate(tmp_path)
    for other in (folder.parent, tmp_path):  # of runs, or anything else: it never becomes one
        assert main(["watch", str(other)]) == 1
        assert "not the folder of a run; give one" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--every", "0"]) == 2
