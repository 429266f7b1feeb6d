"""Record how long each stage took, for the report: JSON lines beside its log, one per attempt.

A stage that was stopped and resumed has several lines. An attempt that was killed leaves none.
"""

import contextlib
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from nanoeuler.log import line
from nanoeuler.storage.shape import Amount, Count, read_lines

SUFFIX = ".times.jsonl"


class Attempt(TypedDict):
    """The part of a line that the report uses."""

    seconds: Amount
    peak_bytes: Count


class Timing:
    """Measures from its creation to `write`, which adds a line beside the stage's log.

    The line is {"stage", "began", "seconds", "status", "peak_bytes"}, the last of which is the most
    memory that the process has had.
    """

    def __init__(self, stage: str):
        self.stage = stage
        self.began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.first = time.monotonic()

    def write(self, log: str | Path | None, status: int) -> None:
        """Write the line. Without a `log` there is none: then a person ran the stage by hand.

        On a full disk the stage, whose work is done, lacks its time.
        """
        if log is None:
            return
        entry = {
            "stage": self.stage,
            "began": self.began,
            "seconds": round(time.monotonic() - self.first, 3),
            "status": status,
            "peak_bytes": peak_bytes(),
        }
        path = Path(log).with_suffix(SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:  # the work is done
            line("warning", f"{path}: the time was not recorded ({error.strerror})")


def peak_bytes() -> int:
    """The most memory that this process has had. GPUs' own is not in it.

    `ru_maxrss` is that of the process that started this one, where that had more (Linux keeps it
    over fork and exec), so it counts only where /proc is not there.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return 1024 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_times(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return rule → its attempts in the run `folder`.

    They lie beside logs/<rule>.log, logs/<rule>/<job>.log and <rule>/train.log.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted([*folder.glob(f"logs/**/*{SUFFIX}"), *folder.glob(f"*/train{SUFFIX}")]):
        parts = path.relative_to(folder).parts
        rule = parts[0] if parts[0] != "logs" else parts[1].removesuffix(SUFFIX)
        mend = "delete the file; the report does without its times"
        for _, entry in read_lines(path, lambda _: Attempt, mend):
            if entry is not None:  # else it was cut off by a kill
                entry["job"] = "/".join(parts[1:]).removesuffix(SUFFIX)
                found.setdefault(rule, []).append(entry)
    return found
