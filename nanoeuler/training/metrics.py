"""`metrics.jsonl`: the measurements of a training stage for machines, one JSON object a line."""

import json
import os
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.storage.files import MOST_LINES, atomic_write, explain_os_errors, read_text


class Metrics:
    """Appends lines. Each is on disk when `write` returns, so a kill loses none."""

    def __init__(self, path: Path):
        self.path = path

    def restart(self, header: dict[str, Any]) -> None:
        """Start a new file with `header`, the line that describes the run."""
        self.refuse_link()
        with atomic_write(self.path) as file:
            file.write(json.dumps(header) + "\n")

    def cut_back(self, header: dict[str, Any], step: int, *, validated: bool) -> None:
        """Drop the measurements behind `step`, at which training resumes.

        `validated`: the checkpoint includes the validation of that step, so its line stays.
        """
        self.refuse_link()
        kept = [header]
        lines = read_text(self.path, MOST_LINES).splitlines() if self.path.exists() else []
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

    def refuse_link(self) -> None:
        """Raise `UserError` for a link, whose target would be replaced."""
        if self.path.is_symlink():
            raise UserError(
                f"{self.path}: a link to {os.path.realpath(self.path)}, which would be replaced; "
                "delete the link"
            )

    def write(self, **values: Any) -> None:
        try:
            with explain_os_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except FileNotFoundError as error:
            raise moved(self.path.parent) from error


def moved(folder: Path) -> UserError:
    return UserError(
        f"{folder}: was moved or deleted while the stage ran; put it back, or name its new place, "
        "and run again, which resumes from the last checkpoint"
    )
