"""Find how many cores this process may use, and how many threads it should start."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


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


def group_quota(folder: Path) -> float:
    """Return the cores that the control group in `folder` allows."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            time, period = map(int, " ".join((folder / name).read_text() for name in files).split())
        except (OSError, ValueError):  # another version, or "max 100000"
            continue
        if min(time, period) > 0:  # -1: no limit
            return time / period
    return math.inf


def threads_allowed(root: Path = Path("/")) -> int:
    """Return `usable_cores()`, or fewer if the usual variables, which a workflow sets, say so."""
    asked = map(threads_asked, ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    return min([usable_cores(root), *filter(None, asked)])


def threads_asked(variable: str) -> int:
    """Return the number in an environment variable, or 0.

    OpenMP allows a list, with a number for each level of nesting: then it is the first.
    """
    first = os.environ.get(variable, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0
