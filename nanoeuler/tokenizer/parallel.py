"""Compiled functions at work in several threads, with results in the order of what they came from."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3  # items under way for each thread, so that none waits for whoever takes the results


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """`function` of each item. Memory holds a few items and results for each thread, however many there are.

    Threads are enough because compiled functions, reading and hashing let each other run.
    """
    if threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    under_way: deque = deque()
    try:
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) >= AHEAD * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
