"""The engine's threads.

Compiled kernels and BLAS release Python's lock, so plain threads run them at the same time. Part i
always covers the same rows, so results do not depend on which thread is faster.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class ThreadPool:
    """`threads` threads, the caller's included."""

    def __init__(self, threads: int):
        self.threads = threads
        self.pool = (
            ThreadPoolExecutor(threads - 1, thread_name_prefix="nanoeuler") if threads > 1 else None
        )

    def each(self, parts: int, work: Callable[[int], None]) -> None:
        """Run work(0) … work(parts − 1) together, the first in the caller's thread.

        `parts` may exceed the number of threads. Returns when all are done.
        """
        waiting = [self.pool.submit(work, part) for part in range(1, parts)] if self.pool else []
        work(0)
        if not self.pool:
            for part in range(1, parts):
                work(part)
        for future in waiting:
            future.result()

    def share(self, count: int, most: int, work: Callable[..., None], *arguments: Any) -> None:
        """work(*arguments, first, stop) on contiguous parts of range(count), at most `most`."""
        parts = 1 if self.threads == 1 else max(1, min(self.threads, most, count))
        if parts == 1:
            work(*arguments, 0, count)
            return

        def work_on(part: int) -> None:
            work(*arguments, part * count // parts, (part + 1) * count // parts)

        self.each(parts, work_on)
