"""Write files so that a reader never sees half of one, read JSON, and hash.

A file is written under a temporary name in the same folder, flushed to disk and renamed: a kill at
any moment leaves either the old file or the new one, and a temporary one that the next writer
removes. A full disk becomes a `UserError`.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nanoeuler.errors import UserError
from nanoeuler.storage.temporary import temporary_beside

MOST_JSON = 100_000_000
"""Bytes of the largest JSON file that is read whole, and of a line of JSON."""
MOST_LINES = 1_000_000_000
"""Most bytes of a `metrics.jsonl`: three million steps at some 300 bytes."""
MOST_NOTE = 10_000
"""Most bytes of a note beside a file, such as a hash, an address or a lock's holder."""
IN_THE_WAY = (
    *(errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR),
    *(errno.EBUSY, errno.EXDEV, errno.ELOOP, errno.ENAMETOOLONG),
)


@contextlib.contextmanager
def explain_os_errors(path: Path | None = None) -> Iterator[None]:
    """Turn errors that a user can mend into a `UserError` naming `path`, or the file that failed.

    These are a full or a broken disk, missing permissions, and a file or folder in the way.
    """
    try:
        yield
    except OSError as error:
        where = f"{path or error.filename}: " if path or error.filename else ""
        # EFBIG: a limit on file sizes
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"{where}the disk is full; free some space or use another disk (a run's: "
                "data_dir and results_dir), then run again"
            ) from error
        if error.errno == errno.EROFS:
            raise UserError(f"{where}the disk can only be read; choose another folder") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UserError(
                f"{where}no permission there; choose another folder or change its owner"
            ) from error
        if error.errno in (errno.EIO, errno.ENODEV):
            raise UserError(
                f"{where}cannot be read or written ({error.strerror}); check the disk and run again"
            ) from error
        if error.errno in IN_THE_WAY:
            raise UserError(
                f"{where}cannot be used ({error.strerror}: {error.filename}); give another path"
            ) from error
        raise


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; fsync and rename it on success, remove it on any error.

    `mode` is "w" (UTF-8 text, line ends as written) or "wb". Only a regular file is replaced: of a
    link it is the file that the link leads to, and a device or a pipe is written to.
    """
    path = Path(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    with explain_os_errors(path):
        refuse_folder(path)
        if path.exists() and not path.is_file():
            with open(path, mode, encoding=encoding, newline=newline) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        with temporary_beside(target) as temporary:
            with open(temporary, mode, encoding=encoding, newline=newline) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            sync(target.parent)


def refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path}: a folder; give the name of a file to write")


def require_place(path: str | Path) -> None:
    """Refuse a path where `atomic_write` could not write, before the work whose result goes there.

    Raises `UserError`.
    """
    path = Path(path)
    with explain_os_errors(path):
        refuse_folder(path)
        if path.is_file() or not path.exists():
            with temporary_beside(Path(os.path.realpath(path))):
                pass


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_bounded(path: str | Path, most: int) -> bytes:
    """Read a file. Raises `UserError` for more than `most` bytes: a device may be endless."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise too_large(path, most)
    return content


def too_large(path: str | Path, most: int) -> UserError:
    size = f"{most / 1e6:.0f} MB" if most >= 1e6 else f"{most:,} bytes"
    return UserError(f"{path}: more than {size}, too much for such a file; give another one")


def read_text(path: str | Path, most: int = MOST_JSON) -> str:
    """Read a UTF-8 file like `read_bounded`. Raises UnicodeDecodeError for other bytes."""
    return read_bounded(path, most).decode("utf-8")


def read_lines(path: str | Path, most: int = MOST_JSON) -> Iterator[bytes]:
    """The lines of a file, one at a time. Raises `UserError` for one of more than `most` bytes."""
    with open(path, "rb") as file:
        while line := file.readline(most + 1):
            if len(line) > most:
                raise too_large(path, most)
            yield line


def parse_json(text: str, **options: Any) -> Any:
    """`json.loads`, which raises ValueError for all that it cannot read."""
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number has thousands of digits") from error


def read_json(path: str | Path, most: int = MOST_JSON) -> Any:
    """Read a JSON file. Raises `UserError` when it is missing, larger than `most` or not JSON."""
    path = Path(path)
    try:
        return parse_json(read_text(path, most))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run the stage that writes it first") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give another file") from error
    except ValueError as error:  # not JSON or not UTF-8
        raise UserError(
            f"{path}: not valid JSON ({error}); give another file, or, if a stage wrote it, delete "
            "it and run that stage again"
        ) from error


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
