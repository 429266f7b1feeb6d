"""Find how much memory this process may still take."""

import os
from pathlib import Path

from nanoeuler.system.cores import group_folders


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
    return min(free) if free else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def group_memory(folder: Path) -> int | None:
    """Return the bytes that the control group in `folder` leaves, None without a limit."""
    for names in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, used = (int((folder / name).read_text()) for name in names)
        except (OSError, ValueError):  # another version, or "max"
            continue
        return max(1, most - used)
    return None
