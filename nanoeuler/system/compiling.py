"""Compile functions to machine code with Numba, keep it on disk, and say when it takes time.

    @compiled()
    def kernel(...): ...

compiles at the first call with each combination of argument types. The machine code is kept beside
the source, or in the user's cache folder where that is read-only, and the next process loads it.
Damaged files, and those of other sources, settings or versions, are compiled again. Where no file
can be written, each process compiles for itself and says why.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, event
from numba.core.runtime import rtsys

from nanoeuler import log
from nanoeuler.system.interrupts import put_off
from nanoeuler.system.machine import cache_folder

USUAL = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
"""The wrapper with C's types, which no caller uses, takes 4 % of the time to compile."""

SETTINGS = (
    *("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE"),
    *("ENABLE_AVX", "DISABLE_INTEL_SVML"),
)
"""Numba's settings (environment variables NUMBA_…) that change machine code. Its own index of a
cache has its version, the processor and the function's bytecode."""

QUIET_SECONDS = 1800
"""Time in which only the first of a workflow's stages says that it compiles."""


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator: `numba.njit` with our cache.

    `options` are those of `njit`: parallel, fastmath, inline, boundscheck, …
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**(USUAL | options))(function)
        # a callback of LLVM would swallow Ctrl-C, and the machine code would be missing
        dispatcher.compile = put_off()(dispatcher.compile)
        try:
            dispatcher._cache = FolderCache(function)
        except RuntimeError:  # no folder can be written
            ANNOUNCEMENT.not_kept(
                "neither the program's folder nor the user's cache folder can be written"
            )
        return dispatcher

    return decorate


class FolderStamp:
    """Makes machine code depend on all sources of its folder and of this file.

    Functions and constants of other files end up in their callers' machine code. Numba's own stamp,
    which covers the caller's file alone, would keep using the old one. Compiled functions take
    nothing from other folders.
    """

    _py_file: str  # set by Numba's locators

    def get_source_stamp(self) -> str:
        return folder_stamp(Path(self._py_file).parent)


@functools.cache
def folder_stamp(folder: Path) -> str:
    settings = [str(getattr(numba.config, name, None)) for name in SETTINGS]
    digest = hashlib.sha256(repr((llvmlite.__version__, settings)).encode())
    for path in (Path(__file__), *sorted(folder.glob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class BesideSource(FolderStamp, caching.InTreeCacheLocator):
    pass


class InUserFolder(FolderStamp, caching.UserWideCacheLocator):
    pass


class InGivenFolder(FolderStamp, caching.UserProvidedCacheLocator):
    """The folder that NUMBA_CACHE_DIR names."""


class FolderCacheFiles(caching.CompileResultCacheImpl):
    _locator_classes = [InGivenFolder, BesideSource, InUserFolder]  # noqa: RUF012 - Numba's own


class SealedFiles(caching.IndexDataCacheFile):
    """Machine code behind a hash of itself and of its source's stamp.

    A damaged byte in it would be executed. And Numba writes a function's index before its code: a
    kill in between would leave the old code under the new index.
    """

    def seal(self, data: bytes) -> bytes:
        return hashlib.sha256(self._source_stamp.encode() + data).digest()

    def _save_data(self, name: str, data: Any) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(self.seal(dumped) + dumped)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        seal, dumped = content[:32], content[32:]
        if seal != self.seal(dumped):
            raise ValueError(f"{name} is damaged or of another source")
        return pickle.loads(dumped)


class FolderCache(caching.FunctionCache):
    """Numba's cache, which by itself ends the process over a damaged file or a full disk."""

    _impl_class = FolderCacheFiles

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base, stamp = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = SealedFiles(self._cache_path, base, stamp)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Machine code that is there; without what compiling needs, which takes 0.2 s to import."""
        rtsys.initialize(target_context)
        try:
            return self._load_overload(signature, target_context)
        except Exception:  # also of an index: unpickling what is damaged raises nearly anything
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            ANNOUNCEMENT.not_kept(f"{self.cache_path}: {error.strerror}")


class Announcement(event.Listener):
    """Says that machine code is compiled, or once a process that it cannot be kept."""

    def __init__(self) -> None:
        self.made = False
        self.kept = True

    def on_start(self, event: event.Event) -> None:
        if not self.made:
            self.made = True
            if not self.kept:
                log.line("compiling", "machine code for this processor")
            elif not (said_lately() and log.has_file()):
                log.line(
                    "compiling",
                    "machine code for this processor; it is kept for next time",
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


def said_lately() -> bool:
    """Has another process, such as the stage before, said it in the last half hour?

    Where nothing can be written, none has.
    """
    mark = cache_folder() / "compiling"
    with contextlib.suppress(OSError):
        age = time.time() - mark.stat().st_mtime
        if 0 <= age < QUIET_SECONDS:
            return True
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return False


ANNOUNCEMENT = Announcement()
event.register("numba:compile", ANNOUNCEMENT)
