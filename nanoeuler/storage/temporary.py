"""Temporary files and folders beside an output, and the removal of those of killed writers."""

import contextlib
import fcntl
import glob
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from nanoeuler.errors import UserError

LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.part")
"""Names that `temporary_path` gives."""
ABANDONED_SECONDS = 24 * 3600.0
NAME_LENGTH = 32  # of the characters that a temporary name takes over
TRIES = 100
"""Attempts of a writer whose temporary file is swept away before it is locked."""


def temporary_path(path: Path) -> Path:
    """A new name beside `path` for what is not finished yet: `.NAME.HOST.TOKEN.part`."""
    name = f".{path.name[:NAME_LENGTH]}.{os.uname().nodename}.{os.urandom(4).hex()}.part"
    return path.with_name(name)


@contextlib.contextmanager
def temporary_beside(target: Path, folder: bool = False, parents: bool = True) -> Iterator[Path]:
    """Yield a new, empty file or folder, which is locked to show that its writer is alive.

    What has its name in the end is removed. `parents`: make the folders around it. A temporary
    folder is made by its writer alone: made again, it would hide that somebody has moved it.
    """
    if parents and not LEFT.fullmatch(target.parent.name):
        target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, target.name)
    for _ in range(TRIES):
        path = temporary_path(target)
        with contextlib.suppress(FileNotFoundError):  # another process has swept it away
            if folder:
                path.mkdir()
            descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
            if try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)
    else:
        raise UserError(f"{target.parent}: nothing can be made there; give another path")
    try:
        yield path
    finally:
        os.close(descriptor)
        remove(path)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder. False when it is locked; None where locks do not work."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def sweep(folder: Path, name: str = "") -> None:
    """Remove the temporary files and folders that killed writers left in `folder`.

    They are those of paths whose names begin with `name`.
    """
    for left in folder.glob(f"{glob.escape('.' + name[:NAME_LENGTH])}*"):
        if LEFT.fullmatch(left.name):
            with contextlib.suppress(OSError):
                remove_if_abandoned(left)


def remove_if_abandoned(left: Path) -> None:
    """Remove a temporary file or folder whose writer is dead.

    A writer on this host is dead when its lock is free. A lock may be invisible to other hosts, or
    not exist at all; then what has not changed for a day is taken for abandoned.
    """
    here = left.name.removesuffix(".part").rpartition(".")[0].endswith("." + os.uname().nodename)
    descriptor = os.open(left, os.O_RDONLY if left.is_dir() else os.O_RDWR)
    try:
        locked = try_lock(descriptor)
        old = time.time() - last_change(left) > ABANDONED_SECONDS
        if locked is not False and ((locked and here) or old):
            remove(left)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def last_change(path: Path) -> float:
    return max(part.lstat().st_mtime for part in [path, *path.rglob("*")])
