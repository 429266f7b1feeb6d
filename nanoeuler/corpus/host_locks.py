"""One connection at a time to a host, with a pause between two, across all processes of a machine.

Each host has a lock of `storage.locks`, which a process holds while it talks to the host. The
modification time of the lock's file is the earliest moment at which the host may be asked again.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from nanoeuler.storage.locks import lock_file, lock_path

LONGEST_WAIT = 600.0  # seconds; a moment further ahead means that the clock was changed


@contextlib.contextmanager
def locked_host(host: str, pause: float) -> Iterator[None]:
    """Wait until `host` ("name:port") is free, hold it, and leave it alone for `pause` seconds."""
    file = lock_file(host_file(host), wait=True)
    assert file is not None
    with file:
        time.sleep(min(max(0.0, os.fstat(file.fileno()).st_mtime - time.time()), LONGEST_WAIT))
        try:
            yield
        finally:
            postpone(host, pause)


def postpone(host: str, seconds: float) -> None:
    """Let no process of this machine ask `host` for the next `seconds`."""
    file = host_file(host)
    if not file.exists():
        file.touch()
    now = time.time()
    earliest = max(now + seconds, min(file.stat().st_mtime, now + LONGEST_WAIT))
    os.utime(file, (earliest, earliest))


def host_file(host: str) -> Path:
    return lock_path(f"host-{quote(host, safe='')}")
