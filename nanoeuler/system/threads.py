"""A map by several threads that keeps the order of its items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ordered_map(
    function: Callable[[Given], Made], items: Iterable[Given], threads: int, ahead: int = 1
) -> Iterator[Made]:
    """Yield `function` of each item, in their order, computed in several threads.

    Memory holds `ahead` items and results per thread, and one more: with more, no thread waits
    while results are consumed. Threads are enough, because compiled functions, reading and hashing
    release Python's lock.
    """
    if threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
