"""How many cores this process may use, and how many threads it should start."""

import math
import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may run on, or fewer where it may not keep all of them busy, as in a container with a quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, math.ceil(min(cores, quota(root))))


def quota(root: Path) -> float:
    """Cores that the control groups of this process allow it, a group's own and those above it; infinite where none sets a limit, as outside of Linux."""
    try:
        groups = (
            (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        return math.inf
    allowed = [math.inf]
    for group in groups:  # "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1
        _, controllers, path = group.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount, names = (
            root / "sys/fs/cgroup" / ("cpu" if controllers else ""),
            path.strip("/").split("/"),
        )
        # a container that sees the host's path has its own group at the top, and no folder at that path
        allowed += [group_quota(mount.joinpath(*names[:depth])) for depth in range(len(names) + 1)]
    return min(allowed)


def group_quota(folder: Path) -> float:
    """Cores that the control group in `folder` allows."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            time, period = map(int, " ".join((folder / name).read_text() for name in files).split())
        except (OSError, ValueError):  # another version, or "max 100000"
            continue
        if min(time, period) > 0:  # -1: no limit
            return time / period
    return math.inf


def threads_allowed(root: Path = Path("/")) -> int:
    """One for each of `usable_cores()`, or as many as the usual variables, which a workflow sets, ask for if that is fewer."""
    return min(
        [
            usable_cores(root),
            *filter(None, map(threads_asked, ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))),
        ]
    )


def threads_asked(variable: str) -> int:
    """The number in an environment variable, of a list (OpenMP: one for each level of nesting) its first; 0 where there is none."""
    first = os.environ.get(variable, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0
