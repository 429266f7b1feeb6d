"""Functions compiled to machine code by Numba: kept on disk between runs, and never a silent pause.

    @compiled()
    def kernel(...): ...

compiles at the first call with each combination of argument types. A process that has to compile says so once; the
machine code lies beside the source (or in the user's cache folder where that is read-only) and the next process loads it.
"""

import functools
import hashlib
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
        dispatcher._cache = FolderCache(function)
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
    _impl_class = FolderCacheFiles


class Announcement(event.Listener):
    """Says at the first compilation of a process that one is under way."""

    def __init__(self) -> None:
        self.made = False

    def on_start(self, event: event.Event) -> None:
        if not self.made:
            self.made = True
            log.line("compiling", "machine code for this processor, once: the next run finds it on disk")

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", Announcement())
