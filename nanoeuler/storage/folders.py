"""Write folders so that a reader never sees half of one, and replace only those that we made.

A folder of outputs is written under a temporary name beside its place and renamed. A marker in it
lists our files, so that the next writer can tell them from what somebody else has put there.

What nanoeuler writes is told from what people write, too, so that no run learns from another's
output: the workflow puts a mark into each folder that it fills, before its first job.
"""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import explain_os_errors, read_json, sync, write_json
from nanoeuler.storage.temporary import temporary_beside, temporary_path

MARKER = ".nanoeuler"
"""The list of our files in a folder that we made. (A manifest alone would not do: Snakemake deletes
it, as an output, before it makes the folder again.)"""
WHOLE = "state.json"
"""The file of checkpoints, which have no marker: it shows that they are ours."""
MODEL = "config.json"
"""The file of models, which are copied without their marker."""

RENAME_EXCHANGE, AT_FDCWD = 2, -100  # of Linux


@contextlib.contextmanager
def atomic_folder(path: str | Path, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success fsync its files and rename it.

    `parents`: make the folders around it, which are to be there otherwise.
    A folder that is replaced keeps the files that somebody else has put into it. Raises
    `UserError`, before and after the work, where `require_ours` does.
    """
    path = Path(path)
    require_ours(path)
    with explain_os_errors(path):
        target = Path(os.path.realpath(path))
        with temporary_beside(target, folder=True, parents=parents) as temporary:
            yield temporary
            require_ours(path)
            if not (temporary / WHOLE).is_file():
                write_json(temporary / MARKER, {"files": sorted(files_in(temporary))})
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
        if any(path.iterdir()) and files_of_ours(path) is None:
            raise UserError(
                f"{path}: holds files and was not made by nanoeuler, which would replace it; "
                "give the name of a new folder, or move this one away"
            )


def files_of_ours(folder: Path) -> set[str] | None:
    """The names of the files in `folder` that we have put there; None if we did not make it."""
    marked = content_of(folder / MARKER).get("files")
    if isinstance(marked, list):
        return {MARKER, *filter(lambda name: isinstance(name, str), marked)}
    state, model = content_of(folder / WHOLE), content_of(folder / MODEL)
    for sign, whole, content in (
        (WHOLE, {"fingerprint", "sha256"} <= state.keys(), state),
        (MODEL, "nanoeuler" in model, model.get("nanoeuler")),
    ):
        if whole:
            hashes = content.get("sha256") if isinstance(content, dict) else None
            return {sign, *(hashes if isinstance(hashes, dict) else ())}
    return None


def content_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    try:
        content = read_json(path) if path.is_file() else None
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def files_in(folder: Path) -> list[str]:
    """The names of all files and links in `folder`, with "/" between folders."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in found]


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
    ours = files_of_ours(folder) if folder.exists() else None
    if ours is None:
        return
    for name in files_in(folder):
        old, new = folder / name, successor / name
        if name in ours or os.path.lexists(new):
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


def move_folder(folder: Path, target: Path) -> None:
    """Rename a folder; where `target` has files already, each of its files. None is replaced."""
    try:
        os.rename(folder, target)
        return
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    for name in files_in(folder):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(target / name):
            os.rename(folder / name, target / name)
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            inner.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


MARK = ".made-by-nanoeuler"
WORDS = "nanoeuler fills this folder; what it holds is never taken for a text of one's own.\n"
SAMPLE = "sample"
"""The folder of the demo's world, which is replaced as a whole and has our marker."""


def mark_outputs(data: str, results: str, outputs: Iterable[str | Path]) -> None:
    """Mark a run's folder `results`, and the folders in `data` that will hold some of `outputs`."""
    inside = [path for path in map(Path, outputs) if path.is_relative_to(data)]
    kinds = {path.relative_to(data).parts[0] for path in inside} - {SAMPLE}
    folders = [Path(data, kind) for kind in sorted(kinds)]
    for mark in (folder / MARK for folder in (Path(results), *folders)):
        with explain_os_errors(mark):
            if not mark.exists():
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.write_text(WORDS, encoding="utf-8")


class Outputs:
    """The files met in a search that nobody wrote by hand: nanoeuler's, and installed programs'."""

    def __init__(self, root: str):
        """`root` is the folder of the search; it may be a program's that its owner works in."""
        self.root = Path(os.path.realpath(root))
        self.holders: dict[Path, Path | None] = {}
        self.met: dict[Path, int] = {}  # by folder, how many files

    def have(self, file: Path) -> bool:
        """Whether `file`, or what it links to, is one; it is counted."""
        holder = self.holder(Path(os.path.realpath(file)).parent)
        if holder is not None:
            self.met[holder] = self.met.get(holder, 0) + 1
        return holder is not None

    def holder(self, folder: Path) -> Path | None:
        """The nearest folder of ours or of a program that is, or is around, `folder`."""
        chain = []
        for each in (folder, *folder.parents):
            if each in self.holders:
                found = self.holders[each]
                break
            chain.append(each)
            if is_output(each) or (self.root in each.parents and is_environment(each)):
                found = each
                break
        else:
            found = None
        self.holders |= dict.fromkeys(chain, found)
        return found

    def described(self) -> str:
        """A sentence that counts the outputs met; empty where none was."""
        if not self.met:
            return ""
        first, *more = (os.path.relpath(folder) for folder in self.met)
        where = f"{first} and {log.counted(len(more), 'more folder')}" if more else first
        files = log.counted(sum(self.met.values()), "file")
        return f"{files} in {where}, written by nanoeuler or installed with a program"


def is_output(folder: Path) -> bool:
    """Whether nanoeuler fills this folder. (Hidden ones, as Snakemake's, nobody looks into.)"""
    return (folder / MARK).exists() or files_of_ours(folder) is not None


def is_environment(folder: Path) -> bool:
    """Whether Python's or conda's programs are installed in this folder, with their licences."""
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").exists()
