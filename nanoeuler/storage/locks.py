"""Locks between a user's processes on one machine, which the system releases with their holder.

Each lock is a file in a folder of the user's own in the machine's temporary folder. (The data may
lie on a network file system, where such locks are unreliable.)
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from nanoeuler.errors import UserError


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


def is_at(file: BinaryIO, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False
