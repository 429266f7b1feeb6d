"""The seconds of every stage, as the command line leaves them beside the log."""

import json

from nanoeuler.cli import main
from nanoeuler.timing import read_times


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
                {"stage": "x", "began": "2026-11-21T09:00:00Z", "seconds": each, "status": 0}
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
