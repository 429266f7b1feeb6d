"""One connection at a time to a host, with a pause between two, across all processes of a machine.

Each host has a small file in the machine's temporary folder. A process that talks to the host holds
a lock on that file, which the system releases even when the process is killed. The file's
modification time is the earliest moment at which the host may be asked again. (The data folder may
lie on a network file system, where such locks are unreliable.)
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

LONGEST_WAIT = 600.0  # seconds; a moment further ahead means that the clock was changed


@contextlib.contextmanager
def locked_host(host: str, pause: float) -> Iterator[None]:
    """Wait until `host` ("name:port") is free, hold it, and leave it alone for `pause` seconds."""
    with open(lock_file(host), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(min(max(0.0, os.fstat(file.fileno()).st_mtime - time.time()), LONGEST_WAIT))
        try:
            yield
        finally:
            postpone(host, pause)


def postpone(host: str, seconds: float) -> None:
    """Let no process of this machine ask `host` for the next `seconds`."""
    file = lock_file(host)
    if not file.exists():
        file.touch()
    now = time.time()
    earliest = max(now + seconds, min(file.stat().st_mtime, now + LONGEST_WAIT))
    os.utime(file, (earliest, earliest))


def lock_file(host: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"nanoeuler-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / quote(host, safe="")
