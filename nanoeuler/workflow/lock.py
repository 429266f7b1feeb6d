"""The lock of Snakemake on its working folder, which a killed Snakemake leaves behind.

Snakemake writes lock files to .snakemake/locks and deletes them in the end. After `kill -9` or a
power cut they stay, and stop every later run. So each Snakemake that reads our Snakefile first
notes that it begins, and holds a lock of the system, which ends with its process. When nobody holds
that lock, the lock files that were written since then belong to the dead.
"""

import atexit
import contextlib
import fcntl
import json
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from nanoeuler.storage.files import MOST_JSON
from nanoeuler.workflow.snakemake_internals import FOLDER, LOCKS


class WorkflowLock:
    """Deletes the lock files of killed Snakemakes, and holds its own lock while it exists.

    On a file system without locks nothing is deleted, and nothing while another machine may be at
    work; Snakemake then asks for `--unlock`.
    """

    def __init__(self, folder: Path = FOLDER):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            path = folder / "nanoeuler-locks.jsonl"
            self.notes = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open while it is held
            with contextlib.suppress(BlockingIOError):  # another Snakemake is at work
                fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_locks_of_the_dead(self.notes, folder)
            fcntl.flock(self.notes, fcntl.LOCK_SH)
            self.notes.write(json.dumps([socket.gethostname(), time.time_ns()]) + "\n")
            self.notes.flush()
            atexit.register(self.end)

    def end(self) -> None:
        """Forget the notes, unless another Snakemake is at work."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.notes.truncate(0)


def delete_locks_of_the_dead(notes: TextIO, folder: Path) -> None:
    """Delete the lock files that were written since the first of the dead began, and the notes."""
    notes.seek(0)
    lines = notes.read(MOST_JSON).splitlines()
    notes.truncate(0)
    try:
        hosts, moments = zip(*map(json.loads, lines), strict=True)
        first = min(moments)
    except (ValueError, TypeError):  # no notes, or damaged ones
        return
    if {*hosts} != {socket.gethostname()}:
        return
    dead = [file for file in folder.glob(LOCKS) if file.stat().st_mtime_ns >= first]
    for file in dead:
        file.unlink()
    if dead:
        print(
            "lock  the last Snakemake in this folder was killed; its lock is deleted, and "
            "stages resume where they stopped",
            file=sys.stderr,
        )
