"""Write files so that a reader never sees half of one, and hash files.

Every output of a stage is written under a temporary name in the same folder, flushed to disk and
renamed: a kill at any moment leaves either the old file or the new one. A full disk becomes a
`UserError`.
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


@contextlib.contextmanager
def explain_os_errors(path: Path | None = None) -> Iterator[None]:
    """Turn errors that a user can mend into a `UserError` naming `path`, or the file that failed.

    These are a full disk, missing permissions, and a file or folder in the way.
    """
    try:
        yield
    except OSError as error:
        where = f"{path or error.filename}: " if path or error.filename else ""
        # EFBIG: a limit on file sizes
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"{where}the disk is full; free some space or set data_dir and results_dir to "
                "another disk, then run again"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(
                f"{where}no permission there; choose another folder or change its owner"
            ) from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise UserError(
                f"{where}cannot be used ({error.strerror}: {error.filename}); give another path"
            ) from error
        raise


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; fsync and rename it on success, remove it on any error.

    `mode` is "w" (UTF-8 text, line ends as written) or "wb".
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: a folder; give the name of a file to write")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
            with open(temporary, mode, encoding=encoding, newline=newline) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success fsync its files and rename it."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explain_os_errors(path):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as opened:
                        os.fsync(opened.fileno())
            previous = path.with_name(f".{path.name}.{os.getpid()}.old")
            if path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
            sync_folder(path.parent)
            shutil.rmtree(previous, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Make a rename in the folder `path` survive a power cut."""
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


def read_json(path: str | Path) -> Any:
    """Read a JSON file. Raises `UserError` when it is missing or is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run the stage that writes it first") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not valid JSON ({error}); delete it and run the stage that writes it again"
        ) from error


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """The user's folder for what can be found again: chosen algorithms, hashes of large files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanoeuler"
