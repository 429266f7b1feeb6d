"""Functions compiled to machine code by Numba: kept on disk between runs, and never a silent pause.

    @compiled()
    def kernel(...): ...

compiles at the first call with each combination of argument types. A process that has to compile says so once; the
machine code lies beside the source (or in the user's cache folder where that is read-only) and the next process loads it.
Files that are damaged are compiled anew; where none can be written, each process compiles for itself and says why.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, event

from nanoeuler import log

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""What a sum in float32 may be turned into; infinities and NaNs keep their meaning, which plain `fastmath=True` takes away."""


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `numba.njit` with our cache. `options` are those of `njit`: parallel, fastmath, inline, boundscheck, …"""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**{"nogil": True, "error_model": "numpy", **options})(function)
        try:
            dispatcher._cache = FolderCache(function)
        except RuntimeError:  # no folder can be written
            ANNOUNCEMENT.not_kept(
                "neither the program's folder nor the user's cache folder can be written"
            )
        return dispatcher

    return decorate


class FolderStamp:
    """Machine code is as old as the compiled modules of its folder: a function is inlined into callers in other files,
    and Numba's own stamp, of the function's file alone, would go on using what was changed elsewhere."""

    def get_source_stamp(self) -> str:
        return folder_stamp(Path(self._py_file).parent)


@functools.cache
def folder_stamp(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        if b"compiled" in source:
            digest.update(path.name.encode() + b"\0" + source)
    return digest.hexdigest()


class BesideSource(FolderStamp, caching.InTreeCacheLocator):
    pass


class InUserFolder(FolderStamp, caching.UserWideCacheLocator):
    pass


class AskedFor(FolderStamp, caching.UserProvidedCacheLocator):
    """NUMBA_CACHE_DIR."""


class FolderCacheFiles(caching.CompileResultCacheImpl):
    _locator_classes = [AskedFor, BesideSource, InUserFolder]  # noqa: RUF012 - Numba's own attribute


class FolderCache(caching.FunctionCache):
    """Numba's, which ends the process over a file that a crash or a full disk has cut off, and over a disk that is full."""

    _impl_class = FolderCacheFiles

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # unpickling what is damaged raises nearly anything
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            ANNOUNCEMENT.not_kept(f"{self.cache_path}: {error.strerror}")


class Announcement(event.Listener):
    """Says at the first compilation of a process that one is under way, and once if its result cannot be kept."""

    def __init__(self) -> None:
        self.made = False
        self.kept = True

    def on_start(self, event: event.Event) -> None:
        if not self.made:
            self.made = True
            log.line(
                "compiling",
                "machine code for this processor"
                + (", once: the next run finds it on disk" if self.kept else ""),
            )

    def on_end(self, event: event.Event) -> None:
        pass

    def not_kept(self, reason: str) -> None:
        if self.kept:
            self.kept = False
            log.line(
                "compiling",
                f"machine code cannot be kept and every run compiles anew ({reason}); "
                "name a folder for it in NUMBA_CACHE_DIR",
            )


ANNOUNCEMENT = Announcement()
event.register("numba:compile", ANNOUNCEMENT)
