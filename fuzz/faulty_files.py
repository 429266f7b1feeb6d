"""A file layer of a process that fails once: at its n-th write, fsync, rename, mkdir or open.

`install(fail_at, number)` replaces the functions of Python that change the disk. What is not
Python's own is covered by its library's entry: safetensors writes half a file and fails as it does
on a full disk. NumPy's `tofile` and DuckDB write by themselves and are not covered.
"""

import builtins
import errno
import io
import os
import re
from collections.abc import Callable
from typing import Any

FUNCTIONS = ("mkdir", "rename", "replace", "link", "fsync", "write", "truncate", "ftruncate")


class Counter:
    """Counts operations, and fails the one whose number is `fail_at`."""

    def __init__(self, fail_at: int | None, number: int, spare: str):
        self.fail_at, self.number = fail_at, number
        self.spare = re.compile(spare)  # paths that are not this run's
        self.done = 0
        self.failed = ""

    def count(self, what: str, path: object = None) -> None:
        if isinstance(path, str | bytes | os.PathLike) and self.spare.match(os.fsdecode(path)):
            return
        self.done += 1
        if self.done == self.fail_at:
            self.failed = f"{what} {path}"
            name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None
            raise OSError(self.number, os.strerror(self.number), name)


class FaultyFile(io.FileIO):
    """A file that is written without buffers of its own."""

    counter: Counter

    def write(self, data: Any) -> int:
        try:
            self.counter.count("write", self.name)
        except OSError:
            super().write(bytes(data)[: len(data) // 2])  # as a disk that gets full
            raise
        return super().write(data) or 0


def install(fail_at: int | None, number: int = errno.ENOSPC, spare: str = "/dev|/proc") -> Counter:
    """Fail operation `fail_at` (from 1; None: count only) with the error `number`."""
    counter = Counter(fail_at, number, spare)

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(first: Any, *arguments: Any, **named: Any) -> Any:
            counter.count(name, path_of(first) if isinstance(first, int) else first)
            return function(first, *arguments, **named)

        return wrapped

    for name in FUNCTIONS:
        setattr(os, name, counted(name, getattr(os, name)))
    true_open, true_os_open = io.open, os.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return true_open(file, mode, buffering, *rest, **named)
        counter.count("open", file)
        raw = type("File", (FaultyFile,), {"counter": counter})(
            file, mode.replace("b", "").replace("t", ""), True, named.get("opener")
        )
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        names = ("encoding", "errors", "newline")
        given = dict(zip(names, rest, strict=False))
        given |= {name: named[name] for name in names if name in named}
        text = io.TextIOWrapper(buffered, line_buffering=buffering == 1, **given)
        return text

    def opened_low(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            counter.count("open", path)
        return true_os_open(path, flags, *rest, **named)

    for module in (builtins, io):
        setattr(module, "open", opened)  # noqa: B010 - the types forbid it
    os.open = opened_low
    fail_safetensors(counter)
    return counter


def path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def fail_safetensors(counter: Counter) -> None:
    """Count what safetensors writes as one operation, and fail it as it does on a full disk."""
    import safetensors.numpy
    from safetensors import SafetensorError

    true_save = safetensors.numpy.save_file

    def save_file(tensors: Any, path: Any, *rest: Any) -> None:
        try:
            counter.count("safetensors", path)
        except OSError as error:
            true_save(tensors, path, *rest)
            os.truncate(path, os.path.getsize(path) // 2)
            raise SafetensorError(
                f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            ) from error
        true_save(tensors, path, *rest)

    setattr(safetensors.numpy, "save_file", save_file)  # noqa: B010 - the types forbid it
