"""Temporary files and folders beside an output, the removal of those of killed writers, and locks
between a user's processes on one machine.

The system releases a lock with its holder. Each is a file in a folder of the user's own in the
machine's temporary folder. (The data may lie on a network file system, where such locks are
unreliable.)
"""

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

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
        changed = max(part.lstat().st_mtime for part in [left, *left.rglob("*")])
        old = time.time() - changed > ABANDONED_SECONDS
        if locked is not False and ((locked and here) or old):
            remove(left)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def lock_path(name: str) -> Path:
    """The file of the lock `name`. Raises `UserError` when the folder is not this user's alone."""
    folder = Path(tempfile.gettempdir()) / f"nanoeuler-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UserError(
            f"{folder}: must be a folder that only you can write to, for locks; "
            "remove it, or set TMPDIR to a folder of your own"
        )
    return folder / name


def lock_file(path: Path, wait: bool) -> BinaryIO | None:
    """Open and lock the file at `path`, which is made when there is none.

    The open file holds the lock until it is closed. Without `wait`, None when another process has
    it. A file that was deleted or replaced meanwhile does not count, since the next process would
    lock another. A file system without locks gives every process the file.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UserError(f"{path}: a link in the place of a lock; delete it") from error
        file = os.fdopen(descriptor, "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            return file
        if is_at(file, path):
            return file
        file.close()


def is_at(file: IO[Any], path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False
