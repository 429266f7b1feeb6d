"""`metrics.jsonl`: what a training stage measured, one JSON object a line, for machines."""

import json
from pathlib import Path
from typing import Any

from nanoeuler.files import atomic_write, explain_os_errors


class Metrics:
    """Appends lines; each is on disk when `write` returns, so a kill loses none."""

    def __init__(self, path: Path):
        self.path = path

    def restart(self, header: dict[str, Any]) -> None:
        """Begin anew with the line that describes the run."""
        with atomic_write(self.path) as file:
            file.write(json.dumps(header) + "\n")

    def cut_back(self, header: dict[str, Any], step: int, validated: bool) -> None:
        """Drop what was measured beyond the checkpoint that training goes on from.

        `validated`: the checkpoint knows its own validation, so that line stays.
        """
        kept = [header]
        for line in (
            self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        ):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # half a line, from a kill while writing
                continue
            at = entry.get("step")
            if (
                at is not None
                and "finished" not in entry
                and (at < step or (at == step and (validated or "validation" not in entry)))
            ):
                kept.append(entry)
        with atomic_write(self.path) as file:
            file.writelines(json.dumps(entry) + "\n" for entry in kept)

    def write(self, **values: Any) -> None:
        with explain_os_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
