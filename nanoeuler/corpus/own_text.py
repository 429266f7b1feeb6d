"""Find one's own text: files, folders and globs named in `corpus.sources`.

Files come in the order of their sorted paths. What a folder or glob has beside them is counted and
named; what is read of a file is said in text_files.py.
"""

import glob
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler import log
from nanoeuler.corpus.packed_files import PACKED
from nanoeuler.corpus.text_files import (
    JSON_LINES,
    PARQUET,
    RECORDS,
    TEXTS,
    Reading,
    has_text_records,
    is_text_name,
    kind_of,
)
from nanoeuler.errors import UserError, brief
from nanoeuler.storage.folders import Outputs
from nanoeuler.storage.names import plain_name

KINDS = (
    f"{', '.join(TEXTS)} and {JSON_LINES} with `text`, each also as {', '.join(PACKED)}, "
    f"and {PARQUET} with `text`"
)
MOST_NAMED = 5


Entry = str | Mapping[str, Any]
"""A path, or {path: …, encoding: …, separator: …}."""


class Named(NamedTuple):
    """An entry of `corpus.sources` that names one's own text, and how its files are read."""

    path: str
    reading: Reading

    @classmethod
    def of(cls, entry: Entry) -> "Named":
        if isinstance(entry, str):
            return cls(entry, Reading())
        return cls(entry["path"], Reading(entry.get("encoding"), entry.get("separator")))


def slug(path: str) -> str:
    """Return the name of a source, made of its path without the suffix of a single file.

    It has at most 60 letters, digits and single hyphens.
    """
    stem = path
    if is_text_name(Path(path)):
        for suffix in (*PACKED, kind_of(Path(path))):
            stem = stem[: -len(suffix)] if stem.lower().endswith(suffix) else stem
    return plain_name(stem, last=True) or "text"


class Found(NamedTuple):
    """Files, sorted, and sentences about those beside them that were left out."""

    files: list[Path]
    notices: list[str]


def find_files(path: str) -> list[Path]:
    return find(path).files


def find(path: str) -> Found:
    """Return the files of text that `path` (a file, a folder or a glob) names.

    Folders are searched with their subfolders; links are followed, each file and folder is taken
    once. Of what a folder or a glob has, hidden and empty files are left out, and so are those that
    nanoeuler has written: each must be named by itself. Raises `UserError` if there are none.
    """
    require_spelling(path)
    expanded = os.path.expanduser(path)
    if os.path.exists(expanded):
        found = [Path(expanded)]
    elif glob.has_magic(expanded):
        found = [Path(match) for match in glob.glob(expanded, recursive=True)]
    else:
        missing = "a link to nothing" if os.path.islink(expanded) else "no such file or folder"
        raise UserError(
            f"{path}: {missing}; correct the path (it counts from the folder in which "
            "the command runs; in corpus.sources, where nothing is there, from the configuration's "
            "folder, or the one around it if that is called config)"
        )
    if found == [Path(expanded)] and not found[0].is_dir():
        if not found[0].is_file() or not is_text_name(found[0]):  # a pipe is no file
            raise UserError(
                f"{path}: not a file of text; save it as plain text and name that file "
                f"(read are {KINDS})"
            )
        return Found(found, [])
    outputs = Outputs(expanded if found == [Path(expanded)] else search_root(expanded))
    search = Search(outputs)
    search.look_at(found)
    beside = ", ".join(filter(None, (outputs.described(), search.described())))
    if not search.texts:
        raise UserError(
            f"{path}: has no file with text in it"
            f"{beside and f' but {beside}'}; correct the path (read are {KINDS})"
        )
    return Found(sorted(search.texts), [f"{path}: left out {beside}"] if beside else [])


def require_spelling(path: str) -> None:
    """Raise `UserError` for bytes that are no UTF-8: a configuration could not hold the name."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{brief(path)}: a name that is not UTF-8; rename it, or give the folder that it is in"
        ) from error


def search_root(pattern: str) -> str:
    """The folder that a glob starts from."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern or "."


def is_output(path: str) -> bool:
    """Whether nanoeuler has written the file `path`, or all texts in that folder."""
    outputs = Outputs(path)
    search = Search(outputs)
    search.look_at([Path(os.path.expanduser(path))])
    return not search.texts and bool(outputs.met)


@dataclass
class Search:
    """A walk through files and folders: the texts, and what is left out beside them."""

    outputs: Outputs
    texts: list[Path] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # by kind
    missed: list[str] = field(default_factory=list)  # what could not be entered, and why
    seen: set[str] = field(default_factory=set)  # real paths

    def look_at(self, paths: list[Path]) -> None:
        """Go through files and folders, and then through what links in them lead to."""
        linked = sorted(path for path in paths if path.is_symlink())
        waiting = sorted(path for path in paths if not path.is_symlink())[::-1]
        with log.Progress("search", None, " files") as progress:
            while waiting or linked:
                path = waiting.pop() if waiting else linked.pop(0)
                real = os.path.realpath(path)
                if real in self.seen:
                    continue
                self.seen.add(real)
                if not path.is_dir():
                    self.meet(path)
                    progress.update(1, texts=len(self.texts))
                    continue
                try:
                    entries = sorted(path.iterdir(), reverse=True)
                except OSError as error:
                    self.missed.append(f"{path} ({error.strerror})")
                    continue
                shown = [entry for entry in entries if not entry.name.startswith(".")]
                if self.outputs.holder(Path(real)) is None:
                    self.others["hidden"] += len(entries) - len(shown)
                waiting += [entry for entry in shown if not entry.is_symlink()]
                linked += [entry for entry in shown[::-1] if entry.is_symlink()]

    def meet(self, file: Path) -> None:
        if not file.is_file():
            leads_nowhere = file.is_symlink() and not file.exists()
            self.missed.append(f"{file} ({'a link to nothing' if leads_nowhere else 'no file'})")
        elif not is_text_name(file):
            if self.outputs.holder(Path(os.path.realpath(file)).parent) is None:
                self.others[file.suffix.lower() or "without a suffix"] += 1
        elif self.outputs.have(file):
            pass
        elif file.stat().st_size == 0:
            self.others["empty"] += 1
        elif kind_of(file) in RECORDS and not has_text_records(file):
            self.others[f"{kind_of(file)} without `text`"] += 1
        else:
            self.texts.append(file)

    def described(self) -> str:
        """A sentence that counts the files left out; empty where none was."""
        counted = sorted(
            self.others.items(), key=lambda each: (each[0] == "hidden", -each[1], each[0])
        )
        known = ", ".join(f"{count:,} {kind}" for kind, count in counted if count)
        more = len(self.missed) - MOST_NAMED
        named = ", ".join(self.missed[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        return "; ".join(filter(None, (known, named and f"not entered: {named}")))
