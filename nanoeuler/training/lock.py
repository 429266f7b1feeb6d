"""One trainer per checkpoint folder.

`flock` is unreliable on network file systems. The lock is therefore a small file that names host,
process and job, and whose modification time is a heartbeat. A holder on this host is alive while
its process is; a holder on another host is alive while its heart beats.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.files import explain_os_errors

HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 120.0
"""After this long without a heartbeat, a holder on another host counts as dead."""


class FolderLock:
    """Holds `folder`/lock.json while the context lasts.

    Raises `UserError` when another trainer holds it.
    """

    def __init__(self, folder: Path):
        self.path = folder / "lock.json"
        self.stop = threading.Event()
        self.identity = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID"),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }

    def __enter__(self) -> "FolderLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self.create():
            holder = self.read()
            if holder is None:  # released, or not yet written completely
                time.sleep(0.1)
                continue
            if self.alive(holder):
                job = f", job {holder['job']}" if holder.get("job") else ""
                raise UserError(
                    f"{self.path.parent}: another trainer is at work there since "
                    f"{holder.get('since')} (process {holder.get('pid')} on "
                    f"{holder.get('host')}{job}); wait for it, "
                    f"or stop it with 'kill {holder.get('pid')}' and run again"
                )
            log.line(
                "lock",
                f"the last trainer (process {holder.get('pid')} on {holder.get('host')}) is gone "
                f"without releasing {self.path}; taking over",
            )
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        threading.Thread(target=self.beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        if self.read() == self.identity:
            self.path.unlink(missing_ok=True)

    def create(self) -> bool:
        """Write the lock if there is none. Its content is complete when its name appears."""
        temporary = self.path.with_name(f".lock.{self.identity['host']}.{os.getpid()}")
        try:
            with explain_os_errors(self.path):
                temporary.write_text(json.dumps(self.identity), encoding="utf-8")
            os.link(temporary, self.path)
            return True
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            return {}

    def alive(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == self.identity["host"] and isinstance(holder.get("pid"), int):
            started = process_start(holder["pid"])
            return started is not None and started == holder.get("process_start")
        try:
            return time.time() - self.path.stat().st_mtime < SILENT_SECONDS
        except FileNotFoundError:
            return False

    def beat(self) -> None:
        while not self.stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def process_start(pid: int) -> str | None:
    """When process `pid` started, which tells it from an earlier process of that number.

    None when there is no such process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:  # a system without /proc
        os.kill(pid, 0)
        return "alive"
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
