"""The threads of the engine: work is cut into as many parts, the caller takes the first, and all are awaited.

Compiled kernels and BLAS release Python's lock, so plain threads run them side by side. A part always means the same rows, so
results do not depend on who is faster.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Team:
    """`threads` threads, the caller's included."""

    def __init__(self, threads: int):
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="nanoeuler") if threads > 1 else None

    def each(self, parts: int, work: Callable[[int], None]) -> None:
        """work(0) … work(parts − 1), together; `parts` may exceed the number of threads."""
        waiting = [self.pool.submit(work, part) for part in range(1, parts)] if self.pool else []
        work(0)
        if not self.pool:
            for part in range(1, parts):
                work(part)
        for future in waiting:
            future.result()

    def share(self, count: int, least: int, work: Callable[[int, int], None]) -> None:
        """work(first, stop) on contiguous parts of range(count), none of fewer than `least` items unless there are no more."""
        parts = max(1, min(self.threads, count // least))
        if parts == 1:
            work(0, count)
        else:
            self.each(parts, lambda part: work(part * count // parts, (part + 1) * count // parts))
