"""Write files so that a reader never sees half of one, and hash files.

Every output of a stage is written under a temporary name in the same folder, flushed to disk and
renamed: a kill at any moment leaves either the old file or the new one, and a temporary one that
the next writer removes. A full disk becomes a `UserError`, and so does a folder of somebody else's
files in the place of an output.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nanoeuler.errors import UserError

MOST_JSON = 100_000_000
"""Bytes of the largest JSON file that is read whole."""
MARKER = ".nanoeuler"
"""The list of our files in a folder that we made. (A manifest alone would not do: Snakemake deletes
it, as an output, before it makes the folder again.)"""
WHOLE = ("config.json", "state.json")
"""Files of models and checkpoints, which have no marker: all their files are outputs."""
EARLIER = re.compile(
    r"(train|validation)-.+-\d{3}\.bin|fineweb|gutenberg|"
    r"instructions\.json|preferences\.jsonl|questions\.jsonl"
)
"""Names in folders of tokens, and of the demo's world, that earlier versions made without one."""

SIGNS: tuple[tuple[str, set[str]], ...] = (
    (MARKER, {"files"}),
    ("config.json", {"nanoeuler"}),  # a model
    ("state.json", {"fingerprint", "sha256"}),  # a checkpoint
    ("manifest.json", {"tokenizer", "corpus", "splits"}),  # tokens
    ("manifest.json", {"validation_share", "bad"}),  # instructions, preferences
    ("manifest.json", {"items_sha256"}),  # a task
    ("manifest.json", {"people", "boats", "files"}),  # the demo's world
)
"""Files that show that we made a folder, with keys that they have. They name our files in it."""

LEFT = re.compile(r"\..+\.(?:[0-9a-f]{8}\.part|\d+\.(?:part|old))")
"""Names of temporary files and folders: of `temporary_path`, and of older versions."""
ABANDONED_SECONDS = 24 * 3600.0
NAME_LENGTH = 32  # of the characters that a temporary name takes over
IN_THE_WAY = (
    *(errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR),
    *(errno.EBUSY, errno.EXDEV, errno.ELOOP, errno.ENAMETOOLONG),
)
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # of Linux


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
                f"{where}the disk is full; free some space or set data_dir and results_dir to "
                "another disk, then run again"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
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
        if path.is_dir():
            raise UserError(f"{path}: a folder; give the name of a file to write")
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


# ---- folders


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success fsync its files and rename it.

    A folder that is replaced keeps the files that somebody else has put into it. Raises
    `UserError`, before and after the work, where `require_ours` does.
    """
    path = Path(path)
    require_ours(path)
    with explain_os_errors(path):
        target = Path(os.path.realpath(path))
        with temporary_beside(target, folder=True) as temporary:
            yield temporary
            require_ours(path)
            if not any((temporary / name).is_file() for name in WHOLE):
                write_json(temporary / MARKER, {"files": files_in(temporary)})
            finish_files(temporary)
            keep_others(target, temporary)
            replace_folder(temporary, target)
            sync(target.parent)


def require_ours(path: str | Path) -> None:
    """Raise `UserError` unless a folder can be written to `path`.

    There must be nothing, an empty folder, or a folder that `atomic_folder` has made.
    """
    path = Path(path)
    with explain_os_errors(path):
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            raise UserError(f"{path}: not a folder; give the name of a folder to write")
        mounted = os.path.ismount(os.path.realpath(path))
        if mounted or path.samefile(Path.cwd()):
            what = "a mounted disk" if mounted else "the working folder"
            raise UserError(f"{path}: {what} cannot be replaced; give the name of a folder in it")
        names = [each.name for each in path.iterdir()]
        earlier = all(map(EARLIER.fullmatch, names))
        if not earlier and sign_of_ours(path) is None:
            raise UserError(
                f"{path}: holds files and was not made by nanoeuler, which would replace it; "
                "give the name of a new folder, or move this one away"
            )


def sign_of_ours(folder: Path) -> str | None:
    """The text of the file that shows that we made `folder`; None where no file does."""
    for name, keys in SIGNS:
        if not (folder / name).is_file():
            continue
        try:
            text = (folder / name).read_text(encoding="utf-8")
            content = json.loads(text)
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and keys <= content.keys():
            return text
    return None


def files_in(folder: Path) -> list[str]:
    """The names of all files and links in `folder`, with "/" between folders."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def finish_files(folder: Path) -> None:
    """Give the files the modes that the umask leaves, and bring all of `folder` to the disk."""
    mode = folder.stat().st_mode & 0o666  # of a folder that has just been made
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            with contextlib.suppress(PermissionError):  # a file system without modes
                path.chmod(mode)
        sync(path)


def keep_others(folder: Path, successor: Path) -> None:
    """Put the files that we did not write to `folder` into its `successor`, too."""
    ours = sign_of_ours(folder) if folder.exists() else None
    if ours is None:
        return
    for name in files_in(folder):
        old, new = folder / name, successor / name
        if json.dumps(name, ensure_ascii=False) in ours or os.path.lexists(new):
            continue
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(old, new, follow_symlinks=False)


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`. A folder that was there is called `new` afterwards."""
    try:
        os.rename(new, path)  # there is nothing, or an empty folder
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if exchange(new, path):
            return
        old = temporary_path(path)
        os.rename(path, old)
        try:
            os.rename(new, path)
        except OSError:
            os.rename(old, path)
            raise
        os.rename(old, new)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders at once; False where the system cannot do that."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    done = renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(second))


# ---- what killed writers leave behind


def temporary_path(path: Path) -> Path:
    """A new name beside `path` for what is not finished yet: `.NAME.HOST.TOKEN.part`."""
    name = f".{path.name[:NAME_LENGTH]}.{socket.gethostname()}.{secrets.token_hex(4)}.part"
    return path.with_name(name)


@contextlib.contextmanager
def temporary_beside(target: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new, empty file or folder, which is locked to show that its writer is alive.

    What has its name in the end is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, target.name)
    while True:
        path = temporary_path(target)
        if folder:
            path.mkdir()
        with contextlib.suppress(FileNotFoundError):  # another process has swept it away
            descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
            if try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)
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
    here = left.name.removesuffix(".part").rpartition(".")[0].endswith("." + socket.gethostname())
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


def read_text(path: Path, most: int) -> str:
    """Read a UTF-8 file. Raises `UserError` for more than `most` bytes: a device may be endless."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(
            f"{path}: more than {most / 1e6:.0f} MB, too much for such a file; give another one"
        )
    return content.decode("utf-8")


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


def read_json(path: str | Path) -> Any:
    """Read a JSON file. Raises `UserError` when it is missing or is not JSON."""
    path = Path(path)
    try:
        return parse_json(read_text(path, MOST_JSON))
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
