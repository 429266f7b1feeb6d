"""Map a function over items in several threads, with the results in the order of the items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3  # items submitted per thread, so that no thread waits while results are consumed


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield `function` of each item. Memory holds a few items and results per thread.

    Threads are enough, because compiled functions, reading and hashing release Python's lock.
    """
    if threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    submitted: deque[Future[Result]] = deque()
    try:
        for item in items:
            submitted.append(pool.submit(function, item))
            if len(submitted) >= AHEAD * threads:
                yield submitted.popleft().result()
        while submitted:
            yield submitted.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
