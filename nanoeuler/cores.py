"""How many cores this process may use, and how many threads it should start."""

import os


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_allowed() -> int:
    """One for each of `usable_cores()`, or as many as the usual variables, which a workflow sets, ask for if that is fewer."""
    return min([usable_cores(), *filter(None, map(threads_asked, ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")))])


def threads_asked(variable: str) -> int:
    """The number in an environment variable, of a list (OpenMP: one for each level of nesting) its first; 0 where there is none."""
    first = os.environ.get(variable, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0
