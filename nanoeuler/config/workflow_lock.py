"""The lock of Snakemake on its working folder, which a killed Snakemake leaves behind.

Snakemake writes lock files to .snakemake/locks and deletes them in the end. After `kill -9` or a
power cut they stay, and stop every later run. So each Snakemake that reads our Snakefile holds a
lock of the system as well, which ends with its process, and notes which lock files it has written.
When nobody holds that lock, the noted files belong to the dead.
"""

import base64
import contextlib
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path


def is_incomplete(path: str, folder: Path = Path(".snakemake")) -> bool:
    """Whether a Snakemake that was killed, or is at work, has not finished the output `path`."""
    return (folder / "incomplete" / base64.urlsafe_b64encode(path.encode()).decode()).exists()


class WorkflowLock:
    """Deletes the lock files of killed Snakemakes, and holds its own lock while it exists.

    On a file system without locks nothing is deleted; Snakemake then asks for `--unlock`.
    """

    def __init__(self, folder: Path = Path(".snakemake")):
        self.held = False
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            path = folder / "nanoeuler-locks.jsonl"
            self.notes = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open while it is held
            with contextlib.suppress(BlockingIOError):  # another Snakemake is at work
                fcntl.flock(self.notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.delete_noted()
            fcntl.flock(self.notes, fcntl.LOCK_SH)
            self.held = True

    def note(self, files: Iterable[str]) -> None:
        """Note the lock files that this Snakemake has written."""
        if self.held:
            self.notes.writelines(json.dumps(self.describe(file)) + "\n" for file in files)
            self.notes.flush()

    def describe(self, file: str) -> list[str | int]:
        found = os.stat(file)
        return [socket.gethostname(), file, found.st_ino, found.st_mtime_ns]

    def delete_noted(self) -> None:
        """Delete the lock files that are noted, unless they have changed since."""
        self.notes.seek(0)
        deleted = 0
        for line in self.notes.read().splitlines():
            with contextlib.suppress(ValueError, LookupError, TypeError, OSError):
                note = json.loads(line)
                if self.describe(note[1]) == note:
                    os.unlink(note[1])
                    deleted += 1
        self.notes.truncate(0)
        if deleted:
            print(
                "lock  the last Snakemake in this folder was killed; its lock is deleted, and "
                "stages resume where they stopped",
                file=sys.stderr,
            )
