"""Compile functions to machine code with Numba, keep it on disk, and say when it takes time.

    @compiled()
    def kernel(...): ...

compiles at the first call with each combination of argument types. A process that has to compile
says so once. The machine code is kept beside the source, or in the user's cache folder where that
is read-only, and the next process loads it. Damaged files are compiled again. Where no file can be
written, each process compiles for itself and says why.
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
"""Changes that float32 arithmetic may undergo. Unlike `fastmath=True`, infinities and NaNs work."""


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator: `numba.njit` with our cache.

    `options` are those of `njit`: parallel, fastmath, inline, boundscheck, …
    """

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
    """Makes machine code depend on all compiled modules of a folder, not only on its own file.

    A function may be inlined into callers in other files. Numba's own stamp, which covers the
    caller's file alone, would keep using their old machine code.
    """

    _py_file: str  # set by Numba's locators

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


class InGivenFolder(FolderStamp, caching.UserProvidedCacheLocator):
    """The folder that NUMBA_CACHE_DIR names."""


class FolderCacheFiles(caching.CompileResultCacheImpl):
    _locator_classes = [InGivenFolder, BesideSource, InUserFolder]  # noqa: RUF012 - Numba's own


class FolderCache(caching.FunctionCache):
    """Numba's cache, which by itself ends the process over a damaged file or a full disk."""

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
    """Logs the first compilation of a process, and once if machine code cannot be kept."""

    def __init__(self) -> None:
        self.made = False
        self.kept = True

    def on_start(self, event: event.Event) -> None:
        if not self.made:
            self.made = True
            once = ", once: the next run finds it on disk" if self.kept else ""
            log.line("compiling", f"machine code for this processor{once}")

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
