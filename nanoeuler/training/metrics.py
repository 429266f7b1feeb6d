"""`metrics.jsonl`: the measurements of a training stage for machines, one JSON object a line."""

import json
from pathlib import Path
from typing import Any

from nanoeuler.files import atomic_write, explain_os_errors


class Metrics:
    """Appends lines. Each is on disk when `write` returns, so a kill loses none."""

    def __init__(self, path: Path):
        self.path = path

    def restart(self, header: dict[str, Any]) -> None:
        """Start a new file with `header`, the line that describes the run."""
        with atomic_write(self.path) as file:
            file.write(json.dumps(header) + "\n")

    def cut_back(self, header: dict[str, Any], step: int, *, validated: bool) -> None:
        """Drop the measurements behind `step`, at which training resumes.

        `validated`: the checkpoint includes the validation of that step, so its line stays.
        """
        kept = [header]
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # half a line: the trainer was killed while writing
                continue
            at = entry.get("step")
            if at is None or "finished" in entry:
                continue
            if at < step or (at == step and (validated or "validation" not in entry)):
                kept.append(entry)
        with atomic_write(self.path) as file:
            file.writelines(json.dumps(entry) + "\n" for entry in kept)

    def write(self, **values: Any) -> None:
        with explain_os_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
