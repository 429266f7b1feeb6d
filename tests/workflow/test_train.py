"""`nanoeuler train`: from a text to a model and a report, with one command that also resumes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.waiting import CEILING

COMMAND = [sys.executable, "-m", "nanoeuler", "train", "my novel.txt", "--minutes", "1"]
NAMES = ("Bea", "Bram", "Hild", "Amos", "Wren")
PLACES = ("quay", "inn", "mill", "harbour", "lighthouse", "market", "school")


@pytest.fixture
def folder(tmp_path):
    """A folder outside the checkout, with a novel of 24 kB in it."""
    days = (
        f"On day {day} of that winter {NAMES[day % 5]} walked from the {PLACES[day % 7]} "
        f"to the {PLACES[day % 4]} and met {NAMES[day % 3]}."
        for day in range(300)
    )
    (tmp_path / "my novel.txt").write_text("\n\n".join(days), encoding="utf-8")
    return tmp_path


def start(folder) -> subprocess.Popen:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.Popen(
        COMMAND,
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
    config_file = folder / "results/my-novel/config.yaml"
    written = config_file.read_text(encoding="utf-8")
    assert written.startswith("# nanoeuler train 'my novel.txt' --minutes 1\n")

    second = start(folder)
    said, _ = second.communicate(timeout=CEILING)
    assert second.returncode == 0, said
    assert config_file.read_text(encoding="utf-8") == written
    assert "results/my-novel/config.yaml is there and is taken as it is" in said
    samples = [line for line in said.splitlines() if line.startswith("sample  On day ")]
    assert len(samples) >= 5
    assert "On day" in (folder / "results/my-novel/report.html").read_text(encoding="utf-8")
    assert (folder / "results/my-novel/pretrain/model/model.safetensors").exists()
    assert "chat results/my-novel/pretrain/model" in said
