"""Tell what nanoeuler writes from what people write, so that no run learns from another's output.

The workflow puts a mark into each folder that it fills, before its first job; models, checkpoints
and other folders that appear whole are known by folders.py.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from nanoeuler import log
from nanoeuler.storage.files import explain_os_errors
from nanoeuler.storage.folders import files_of_ours

MARK = ".made-by-nanoeuler"
WORDS = "nanoeuler fills this folder; what it holds is never taken for a text of one's own.\n"
SAMPLE = "sample"
"""The folder of the demo's world, which is replaced as a whole and has a marker of folders.py."""


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
