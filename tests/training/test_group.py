"""Ranks that share computations: over real connections, in threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from nanoeuler.training.distributed.group import ALONE, HostGroup


def groups(size):
    pairs = [Pipe() for _ in range(size - 1)]
    leader = HostGroup(0, size, [near for near, _ in pairs])
    return [leader, *(HostGroup(rank, size, [far]) for rank, (_, far) in enumerate(pairs, 1))]


@pytest.mark.parametrize("count", [0, 1, 3, 7])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_all_values_in_order_and_computes_its_own(size, count):
    computed = [[] for _ in range(size)]

    def work(group):
        def square(number):
            computed[group.rank].append(number)
            return number**2

        return list(group.share(count, square))

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(work, groups(size)))
    assert found == [[number**2 for number in range(count)]] * size
    assert computed == [list(range(rank, count, size)) for rank in range(size)]


def test_a_rank_alone_computes_each_when_it_is_asked_for():
    asked = []
    values = ALONE.share(3, asked.append)
    assert next(values) is None
    assert asked == [0]
