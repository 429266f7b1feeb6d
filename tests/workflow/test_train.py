"""`nanoeuler train`: from a text to a model and a report, with one command that also resumes."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from nanoeuler.corpus.own_text import find_files
from nanoeuler.model.files import load_model
from nanoeuler.tokenizer import Tokenizer
from tests.models import DIARY, LLAMA, model_in
from tests.waiting import CEILING

COMMAND = [sys.executable, "-m", "nanoeuler", "train", ".", "--minutes", "1"]


@pytest.fixture
def folder(tmp_path):
    """A folder outside the checkout, with a novel in it, where runs write, too."""
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes/my novel.txt").write_text(DIARY, encoding="utf-8")
    return tmp_path / "my notes"


def start(folder, *more: str) -> subprocess.Popen:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder.parent / "cache")}
    return subprocess.Popen(
        [*COMMAND, *more],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_stopped_run_resumes_by_the_same_command_and_ends_with_a_report(folder):
    first = start(folder)
    assert first.stdout is not None
    said = ""
    for line in first.stdout:
        said += line
        if line.startswith("pretrain parameters="):
            time.sleep(0.1)  # in the middle of training
            first.send_signal(signal.SIGINT)
            break
    said += first.stdout.read()
    assert first.wait(timeout=CEILING) == 130, said
    assert said.splitlines()[-1].startswith("interrupted  to go on, run the same command again")
    config_file = folder / "results/my-notes/config.yaml"
    written = config_file.read_text(encoding="utf-8")
    assert written.startswith("# nanoeuler train . --minutes 1\n")

    second = start(folder)
    said, _ = second.communicate(timeout=CEILING)
    assert second.returncode == 0, said
    assert config_file.read_text(encoding="utf-8") == written
    assert "results/my-notes/config.yaml is there and is taken as it is" in said
    samples = [line for line in said.splitlines() if line.startswith("sample  On day ")]
    assert len(samples) >= 5
    assert "On day" in (folder / "results/my-notes/report.html").read_text(encoding="utf-8")
    assert (folder / "results/my-notes/pretrain/model/model.safetensors").exists()
    assert "chat results/my-notes/pretrain/model" in said

    # what the run has written is no text of one's own, so a third command finds nothing to do
    made = [folder / "data/corpora/my-notes/manifest.json", *folder.glob("results/*/report.html")]
    times = [file.stat().st_mtime_ns for file in made]
    third = start(folder)
    said, _ = third.communicate(timeout=CEILING)
    assert third.returncode == 0, said
    assert [file.stat().st_mtime_ns for file in made] == times, said
    assert [str(file) for file in find_files(str(folder))] == [str(folder / "my novel.txt")]


def test_a_model_goes_on_through_the_whole_workflow(folder):
    parent = model_in(folder.parent / "parent", LLAMA)
    options = ("--separator", "* * *", "--from", "../parent")
    said, _ = start(folder, *options).communicate(timeout=CEILING)
    run = folder / "results/my-notes"
    made = load_model(run / "pretrain/model")
    ours, theirs = (
        Tokenizer.load(each / "tokenizer.json") for each in (run / "pretrain/model", parent)
    )
    assert ours.fingerprint == theirs.fingerprint, said
    assert made.config == load_model(parent).config
    assert "\nbefore " in said, "the score of the model that goes on"
    assert "trained from the weights of another run" in (run / "README.md").read_text("utf-8")
    first = "# nanoeuler train . --minutes 1 --separator '* * *' --from ../parent\n"
    written = (run / "config.yaml").read_text(encoding="utf-8")
    assert written.startswith(first)
    assert yaml.safe_load(written)["corpus"]["sources"] == [{"path": ".", "separator": "* * *"}]
    again, _ = start(folder, *options).communicate(timeout=CEILING)
    assert "results/my-notes/config.yaml is there and is taken as it is" in again
    assert "\npretrain parameters=" not in again, "nothing is left to do"
