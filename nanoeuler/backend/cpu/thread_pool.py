"""The threads of the engine: work is cut into as many parts, the caller takes the first, and all are awaited.

Compiled kernels and BLAS release Python's lock, so plain threads run them side by side. A part always means the same rows, so
results do not depend on who is faster.
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
        """work(0) … work(parts − 1), together; `parts` may exceed the number of threads."""
        waiting = [self.pool.submit(work, part) for part in range(1, parts)] if self.pool else []
        work(0)
        if not self.pool:
            for part in range(1, parts):
                work(part)
        for future in waiting:
            future.result()

    def share(self, count: int, worth: int, work: Callable[..., None], *arguments: Any) -> None:
        """work(*arguments, first, stop) on contiguous parts of range(count), at most `worth` of them."""
        parts = 1 if self.threads == 1 else max(1, min(self.threads, worth, count))
        if parts == 1:
            work(*arguments, 0, count)
        else:
            self.each(
                parts,
                lambda part: work(*arguments, part * count // parts, (part + 1) * count // parts),
            )
