"""A file layer of a process that fails once: at its n-th write, fsync, rename, mkdir or open.

`install()` replaces the functions of Python that change the disk. What is not Python's own is
covered by its library's entry: safetensors writes half a file and fails as it does on a full disk.
NumPy's `tofile` and DuckDB write by themselves and are not covered.
"""

import builtins
import io
import os
from collections.abc import Callable
from typing import Any

FUNCTIONS = ("mkdir", "rename", "replace", "link", "fsync", "write", "truncate", "ftruncate")
NO_DISK = ("/dev", "/proc")


class Fault:
    """Counts operations, and fails the one whose number (from 1) is `fail_at`."""

    def __init__(self) -> None:
        self.start(None, 0)

    def start(self, fail_at: int | None, error_number: int) -> None:
        """Count from zero again; without `fail_at` nothing fails."""
        self.fail_at, self.error_number = fail_at, error_number
        self.count = 0
        self.failed = ""  # the operation that has failed, and its path

    def operation(self, what: str, path: object = None) -> None:
        """Count one. Raises OSError if it is the one that fails."""
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None
        if name and name.startswith(NO_DISK):
            return
        self.count += 1
        if self.count == self.fail_at:
            self.failed = f"{what} {path}"
            raise OSError(self.error_number, os.strerror(self.error_number), name)


class FaultyFile(io.FileIO):
    """A file without buffers of its own, each of whose writes is an operation."""

    fault: Fault

    def write(self, data: Any) -> int:
        try:
            self.fault.operation("write", self.name)
        except OSError:
            super().write(bytes(data)[: len(data) // 2])  # as a disk that gets full
            raise
        return super().write(data) or 0


def install() -> Fault:
    """Count this process's operations on the disk from now on."""
    fault = Fault()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(first: Any, *arguments: Any, **named: Any) -> Any:
            fault.operation(name, path_of(first) if isinstance(first, int) else first)
            return function(first, *arguments, **named)

        return wrapped

    for name in FUNCTIONS:
        setattr(os, name, counted(name, getattr(os, name)))
    true_open, true_os_open = io.open, os.open
    file_type = type("File", (FaultyFile,), {"fault": fault})

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return true_open(file, mode, buffering, *rest, **named)
        fault.operation("open", file)
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = file_type(file, raw_mode, True, named.get("opener"))
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        names = ("encoding", "errors", "newline")
        given = dict(zip(names, rest, strict=False))
        given |= {name: named[name] for name in names if name in named}
        return io.TextIOWrapper(buffered, line_buffering=buffering == 1, **given)

    def opened_low(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            fault.operation("open", path)
        return true_os_open(path, flags, *rest, **named)

    for module in (builtins, io):
        setattr(module, "open", opened)  # noqa: B010 - the types forbid it
    os.open = opened_low
    fail_safetensors(fault)
    return fault


def path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def fail_safetensors(fault: Fault) -> None:
    """Count what safetensors writes as one operation, and fail it as it does on a full disk."""
    import safetensors.numpy
    from safetensors import SafetensorError

    true_save = safetensors.numpy.save_file

    def save_file(tensors: Any, path: Any, *rest: Any) -> None:
        try:
            fault.operation("safetensors", path)
        except OSError as error:
            true_save(tensors, path, *rest)
            os.truncate(path, os.path.getsize(path) // 2)
            raise SafetensorError(
                f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            ) from error
        true_save(tensors, path, *rest)

    setattr(safetensors.numpy, "save_file", save_file)  # noqa: B010 - the types forbid it
