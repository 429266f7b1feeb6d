"""One connection at a time to a host, with a pause between two, however many jobs of this machine want something from it.

Each host has a small file in the machine's temporary folder. Who talks to the host holds a lock on it, which the system releases even
when the process is killed; its modification time says from when on the host may be asked again. (The data folder would be no place for
it: it may lie on a network file system, where such locks are unreliable.)
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

LONGEST_WAIT = 600.0  # seconds; a date further ahead is a clock that was changed


@contextlib.contextmanager
def turn(host: str, pause: float) -> Iterator[None]:
    """Wait for this process's turn to talk to `host` ("name:port"), and leave it `pause` seconds in peace afterwards."""
    with open(turn_file(host), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(min(max(0.0, os.fstat(file.fileno()).st_mtime - time.time()), LONGEST_WAIT))
        try:
            yield
        finally:
            put_off(host, pause)


def put_off(host: str, seconds: float) -> None:
    """Let nobody on this machine ask `host` for the next `seconds`."""
    file = turn_file(host)
    if not file.exists():
        file.touch()
    now = time.time()
    earliest = max(now + seconds, min(file.stat().st_mtime, now + LONGEST_WAIT))
    os.utime(file, (earliest, earliest))


def turn_file(host: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"nanoeuler-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / quote(host, safe="")
