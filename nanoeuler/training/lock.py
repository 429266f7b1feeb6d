"""One trainer per checkpoint folder.

The lock is a small file, `lock.json`, that names host, process and job. Where `flock` works, its
holder also locks the file, which the system undoes when the holder dies. Elsewhere (some network
file systems), a holder on this machine is alive while its process is. A holder on another machine
is alive while its heartbeat, the file's modification time, is fresh.

A dead holder's successor links its own lock to a name that belongs to that holder, so that only one
of many can do it, and only then renames it to `lock.json`.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import IO, Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import MOST_NOTE, explain_os_errors, sha256_text
from nanoeuler.storage.temporary import is_at
from nanoeuler.system.processes import boot_id, process_namespace, process_start

LOCK = "lock.json"
HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 120.0
"""After this long without a heartbeat, a holder on another machine counts as dead."""


class FolderLock:
    """Holds `folder`/lock.json while the context lasts.

    Raises `UserError` when another trainer holds it.
    """

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / LOCK
        self.stop = threading.Event()
        self.identity = {
            "host": socket.gethostname(),
            "boot": boot_id(),  # two machines, or two containers, may have one name
            "processes": process_namespace(),
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID"),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "token": secrets.token_hex(8),
        }

    def __enter__(self) -> "FolderLock":
        own = self.folder / f".lock.{self.identity['token']}"
        with explain_os_errors(self.path):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = open(own, "x", encoding="utf-8")
            try:
                self.identity["flock"] = self.lock(own)
                self.file.write(json.dumps(self.identity))
                self.file.flush()
                while not self.take(own):
                    pass
            except BaseException:
                with contextlib.suppress(OSError):  # a full disk
                    self.file.close()
                raise
            finally:
                own.unlink(missing_ok=True)
        threading.Thread(target=self.beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        if self.holds():
            self.path.unlink(missing_ok=True)
        self.file.close()

    def lock(self, own: Path) -> bool:
        """Lock our file; whether other processes can see that."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(own, encoding="utf-8") as other:
            return is_locked(other)

    def holds(self) -> bool:
        """Whether lock.json is our file."""
        return is_at(self.file, self.path)

    def take(self, own: Path) -> bool:
        """Try once to become the holder with the complete lock `own`; False asks to try again."""
        with contextlib.suppress(FileExistsError):
            os.link(own, self.path)
            return True
        last = self.last_holder()
        if last is None:  # released
            return False
        holder, successor = last
        try:
            os.link(own, successor)
        except FileExistsError:  # somebody was faster
            return False
        present = self.last_holder(judge=False)
        if present is None or present[0] != self.identity:  # its successor has come and gone
            successor.unlink(missing_ok=True)
            return False
        os.replace(own, self.path)
        for passed in self.folder.glob(".lock.after-*"):
            passed.unlink(missing_ok=True)
        log.line(
            "lock",
            f"{described(holder)} is gone without releasing {self.path}; taking over",
        )
        return True

    def last_holder(self, judge: bool = True) -> tuple[dict[str, Any], Path] | None:
        """The content of lock.json, or of the last successor that was about to replace it, and the
        name of its own successor; None without a lock.

        With `judge`, raises `UserError` when that holder is alive.
        """
        path, found = self.path, None
        while True:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(MOST_NOTE)
                    holder, before = read_holder(text), path
                    path = self.folder / f".lock.after-{sha256_text(text)[:16]}"
                    if path == before:  # nobody succeeds himself: a damaged copy
                        path.unlink()
                    found = holder, path
                    if judge and not path.exists() and self.alive(holder, file):
                        raise UserError(f"{self.folder}: {refusal(holder)}")
            except FileNotFoundError:
                return found

    def alive(self, holder: dict[str, Any], file: IO[str]) -> bool:
        """Whether the holder that wrote the open `file` still runs."""
        known = runs_here(holder, file)
        if known is not None:
            return known
        os.utime(self.file.fileno())  # now, by the clock of the file system
        now = os.fstat(self.file.fileno()).st_mtime
        return now - os.fstat(file.fileno()).st_mtime < SILENT_SECONDS

    def beat(self) -> None:
        while not self.stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError, ValueError):
                os.utime(self.file.fileno())


def at_work(folder: Path) -> bool:
    """Whether a trainer holds the lock of a checkpoint folder, as far as one can tell who does not
    write there: clocks of other machines may be wrong."""
    try:
        with open(folder / LOCK, encoding="utf-8", errors="replace") as file:
            known = runs_here(read_holder(file.read(MOST_NOTE)), file)
            fresh = time.time() - os.fstat(file.fileno()).st_mtime < SILENT_SECONDS
            return fresh if known is None else known
    except OSError:
        return False


def runs_here(holder: dict[str, Any], file: IO[str]) -> bool | None:
    """Whether the holder that wrote the open `file` runs; None where this machine can't tell."""
    if is_locked(file):
        return True
    here = {"host": socket.gethostname(), "boot": boot_id()}
    if all(holder.get(key, here[key]) == here[key] for key in here) and holder:
        if holder.get("flock"):
            return False
        if holder.get("processes", process_namespace()) == process_namespace():
            pid, started = holder.get("pid"), holder.get("process_start")
            return isinstance(pid, int) and started is not None and process_start(pid) == started
    return None


def read_holder(text: str) -> dict[str, Any]:
    """The content of a lock; empty when it is damaged."""
    try:
        holder = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def described(holder: dict[str, Any]) -> str:
    if not holder:
        return "the last trainer, which left a damaged lock,"
    return f"the last trainer (process {holder.get('pid')} on {holder.get('host')})"


def refusal(holder: dict[str, Any]) -> str:
    if not holder:
        return (
            f"lock.json is damaged, and another trainer may be at work there; wait "
            f"{SILENT_SECONDS:.0f} seconds, or delete it when there is none"
        )
    job = f", job {holder['job']}" if holder.get("job") else ""
    pid, host = holder.get("pid"), holder.get("host")
    # a number means another process on another machine, and in another container
    here = {"boot": boot_id(), "processes": process_namespace()}
    known = isinstance(pid, int) and all(holder.get(key) == here[key] for key in here)
    stop = f"stop it with 'kill {pid}'" if known else f"stop it where it runs, on {host},"
    return (
        f"another trainer is at work there since {holder.get('since')} "
        f"(process {pid} on {host}{job}); wait for it, or {stop} and run again"
    )


def is_locked(file: IO[str]) -> bool:
    """Whether another open file has the lock of this one."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        pass
    return False
