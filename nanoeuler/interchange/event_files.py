"""A run's measurements as event files, which TensorBoard shows, and trackio imports.

They are made of what training has written already: no service that is slow or gone stops a run.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.gather import read_metrics

POLL_SECONDS = 5.0


class EventFolder:
    """The events of one stage."""

    def __init__(self, metrics: Path, target: Path):
        """Raises `UserError` where `target` holds something already, or the library is missing."""
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise UserError(
                f"the package {error.name} is missing; install the extra `events`: "
                "make install EXTRAS=events, or pip install 'nanoeuler[events]'"
            ) from error
        if target.exists() and any(target.iterdir()):
            raise UserError(
                f"{target}: there already; delete it, or give another folder with --output"
            )
        self.metrics, self.writer = metrics, SummaryWriter(str(target), write_to_disk=True)
        self.written = 0
        self.began = 0.0
        self.finished = False

    def take(self) -> None:
        """Write what is new. Lines that a resumed run took back and wrote again come twice, with
        the same step."""
        lines = list(read_metrics(self.metrics))
        self.written = min(self.written, len(lines))
        new = lines[self.written :]
        with log.Progress("events", len(new), " lines") as progress:
            for line in new:
                progress.update(1)
                if "step" not in line:  # a header
                    begun = datetime.fromisoformat(line["started"]) if "started" in line else None
                    self.began = begun.timestamp() if begun else 0.0
                    continue
                for name, value in curves(line):
                    self.writer.add_scalar(name, value, line["step"], self.began + line["seconds"])
                self.finished = "finished" in line
        self.written = len(lines)
        self.writer.flush()


def curves(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and numbers of a line of metrics.jsonl: those of held-out texts by the texts' names."""
    for key, value in line.items():
        for name, number in (value if isinstance(value, dict) else {"": value}).items():
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and key not in ("step", "seconds"):
                yield f"{key}/{name}" if name else key, number


def write_events(run: Path, output: Path, *, follow: bool = False) -> list[Path]:
    """Write output/<run>/<stage> for each stage of a run, and return these folders.

    With `follow` until all of the stages that are there have finished. Raises `UserError` for a
    folder without any.
    """
    found = sorted(run.glob("*/metrics.jsonl")) or sorted(run.glob("metrics.jsonl"))
    if not found:
        raise UserError(
            f"{run}: holds no stage's metrics.jsonl; give the folder of a run, such as results/demo"
        )
    name = run.resolve().name
    folders = [EventFolder(path, output / name / path.resolve().parent.name) for path in found]
    try:
        while True:
            for folder in folders:
                folder.take()
            if not follow or all(folder.finished for folder in folders):
                return [Path(folder.writer.logdir) for folder in folders]
            time.sleep(POLL_SECONDS)
    finally:
        for folder in folders:
            folder.writer.close()
