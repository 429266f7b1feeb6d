"""Cores and memory that this process may use, and the user's folders for what processes share."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanoeuler.errors import UserError


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may keep busy, fewer than it sees under a quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, quota(root))))


def quota(root: Path) -> float:
    """Return the cores that the control groups of this process and their parents allow.

    It is infinite where none sets a limit, as on other systems than Linux.
    """
    return min(map(group_quota, group_folders("cpu", root)), default=math.inf)


def group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process: its own and all above."""
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for group in text.splitlines():  # "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1
        _, controllers, path = group.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        names = path.strip("/").split("/")
        # in a container that is given the host's path, that folder is missing: its group is the top
        for depth in range(len(names) + 1):
            yield mount.joinpath(*names[:depth])


def group_numbers(folder: Path, *versions: Sequence[str]) -> list[int]:
    """Return the numbers in the control group's files of one version; none without a limit."""
    for names in versions:
        try:
            return [int(n) for name in names for n in (folder / name).read_text().split()]
        except (OSError, ValueError):  # another version, or "max 100000"
            continue
    return []


def group_quota(folder: Path) -> float:
    """Return the cores that the control group in `folder` allows."""
    found = group_numbers(folder, ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    return found[0] / found[1] if found and min(found) > 0 else math.inf  # -1: no limit


def threads_allowed(root: Path = Path("/")) -> int:
    """Return `usable_cores()`, or fewer if the usual variables, which a workflow sets, say so."""
    asked = map(threads_asked, ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    return min([usable_cores(root), *filter(None, asked)])


def check_threads(threads: int) -> None:
    if threads < 1:
        raise UserError(f"--threads is {threads}: it must be at least 1")


def threads_asked(variable: str) -> int:
    """Return the number in an environment variable, or 0.

    OpenMP allows a list, with a number for each level of nesting: then it is the first.
    """
    first = os.environ.get(variable, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def memory() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that may be taken without another program's losing any, about.

    That is what the machine has available, or what a control group of this process leaves if less.
    Where neither is known, half of the machine's memory.
    """
    free = [left for folder in group_folders("memory", root) if (left := group_memory(folder))]
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(free) if free else memory() // 2


def group_memory(folder: Path) -> int | None:
    """Return the bytes that the control group in `folder` leaves, None without a limit."""
    new, old = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    found = group_numbers(folder, new, old)
    return max(1, found[0] - found[1]) if found else None


def cache_folder() -> Path:
    """`nanoeuler` in the user's cache folder, for what need not be found out again.

    It may be missing, or impossible to write. A user without a home gets a path at which nothing
    can be written.
    """
    return user_folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """`nanoeuler` in the user's folder for what should outlive a program: its history."""
    return user_folder("XDG_STATE_HOME", ".local/state")


def user_folder(variable: str, default: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given / "nanoeuler"
    try:
        return Path.home() / default / "nanoeuler"
    except RuntimeError:
        return Path(os.devnull) / "nanoeuler"
