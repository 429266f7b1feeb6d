"""The seconds of every stage, as the command line leaves them beside the log."""

import json
import subprocess
import sys

import numpy as np

from nanoeuler.cli import main
from nanoeuler.storage.timing import peak_bytes, read_times


def test_a_stage_with_a_log_leaves_its_seconds_beside_it(tmp_path):
    log = tmp_path / "logs" / "info.log"
    assert main(["check", "--quick", "--log", str(log)]) == 0
    [attempt] = read_times(tmp_path)["info"]
    assert (attempt["stage"], attempt["status"], attempt["job"]) == ("check", 0, "info")
    assert attempt["seconds"] > 0
    assert main(["check", "--quick"]) == 0
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1


def test_attempts_and_jobs_of_a_rule_come_together(tmp_path):
    def leave(path: str, *seconds: float, end: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        lines = (
            json.dumps(
                {
                    "stage": "x",
                    "began": "2026-11-21T09:00:00Z",
                    "seconds": each,
                    "status": 0,
                    "peak_bytes": 1_000_000,
                }
            )
            + "\n"
            for each in seconds
        )
        (tmp_path / path).write_text("".join(lines) + end)

    leave("logs/fetch_book/84.times.jsonl", 2.5)
    leave("logs/fetch_book/1342.times.jsonl", 1.5)
    leave("pretrain/train.times.jsonl", 60.0, 30.0, end='{"stage": "pre')  # killed while writing
    times = {
        rule: [attempt["seconds"] for attempt in attempts]
        for rule, attempts in read_times(tmp_path).items()
    }
    assert times == {"fetch_book": [1.5, 2.5], "pretrain": [60.0, 30.0]}


def test_the_memory_of_a_process_is_its_own_and_not_that_of_the_one_that_started_it():
    command = [
        sys.executable,
        "-c",
        "from nanoeuler.storage.timing import peak_bytes; print(peak_bytes())",
    ]
    large = np.ones(40_000_000)  # 320 MB
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 5e6 < int(printed) < 1e8 < large.nbytes < peak_bytes()
