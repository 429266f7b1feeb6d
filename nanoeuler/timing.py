"""How long each stage took: one JSON object a line beside its log, for the report.

A stage that was stopped and went on has a line for each attempt; one that was killed outright leaves none for that attempt.
"""

import json
import time
from pathlib import Path
from typing import Any

from nanoeuler.files import explain_os_errors

SUFFIX = ".times.jsonl"


class Timing:
    """Counts from the moment it is made; `write` puts {"stage", "began", "seconds", "status"} beside the stage's log."""

    def __init__(self, stage: str):
        self.stage, self.began, self.first = (
            stage,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            time.monotonic(),
        )

    def write(self, log: str | Path | None, status: int) -> None:
        """Nothing is written for a stage without a log: it was typed to see something, not to make it."""
        if log is None:
            return
        entry = {
            "stage": self.stage,
            "began": self.began,
            "seconds": round(time.monotonic() - self.first, 3),
            "status": status,
        }
        path = Path(log).with_suffix(SUFFIX)
        with explain_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def read_times(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Rule → its attempts, of the run in `folder`: logs/<rule>.log, logs/<rule>/<job>.log and <rule>/train.log each have their times beside them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted([*folder.glob(f"logs/**/*{SUFFIX}"), *folder.glob(f"*/train{SUFFIX}")]):
        parts = path.relative_to(folder).parts
        rule = parts[0] if parts[0] != "logs" else parts[1].removesuffix(SUFFIX)
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            if isinstance(entry, dict) and isinstance(entry.get("seconds"), int | float):
                found.setdefault(rule, []).append(
                    entry | {"job": "/".join(parts[1:]).removesuffix(SUFFIX)}
                )
    return found
