"""Small arrays on their way between host and device: nobody reads or writes them too early."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
SMALL, LARGE = 1 << 14, 1 << 15
"""Numbers that are taken at once, and that wait beside the stream."""


@pytest.fixture
def backend():
    from nanoeuler.backend.cuda.engine import CudaBackend

    backend = CudaBackend("fp32")
    backend.runtime.enter_thread()
    return backend


@pytest.fixture
def keep_busy():
    """Asks for work of some milliseconds."""
    import cupy

    slow = cupy.ones((8192, 8192), np.float32)
    return lambda: [slow @ slow for _ in range(3)]


def test_pinned_memory_is_given_to_others_only_when_nothing_writes_to_it(backend, keep_busy):
    import cupy
    import cupyx

    cupy.get_default_pinned_memory_pool().free_all_blocks()  # of other tests
    ring = backend.runtime.host_ring(backend.from_host(np.full(LARGE, 7, np.int32)), 1)
    address = ring.pinned.ctypes.data
    keep_busy()
    ring.write()
    ring.expect()
    del ring
    memory = cupyx.empty_pinned(LARGE, np.int32)
    assert memory.ctypes.data == address
    memory[...] = 5
    backend.runtime.finish()
    assert (memory == 5).all()


def test_pinned_memory_is_given_to_others_only_when_nothing_reads_it(backend, keep_busy):
    import cupy
    import cupyx

    cupy.get_default_pinned_memory_pool().free_all_blocks()  # of other tests
    feed = backend.runtime.feed([np.zeros(LARGE, np.int32)])
    address, array = feed.address, feed.arrays[0]
    for number in (1, 2):  # the second one waits for the stream
        feed.load(np.full(LARGE, number, np.int32))
        keep_busy()
    del feed
    memory = cupyx.empty_pinned(LARGE, np.int32)
    assert memory.ctypes.data == address
    memory[...] = 5
    assert (backend.to_host(array) == 2).all()


@pytest.mark.parametrize("size", [64, SMALL, SMALL + 1, LARGE])
def test_what_is_loaded_next_does_not_reach_work_that_was_asked_for_before(
    backend, keep_busy, size
):
    feed = backend.runtime.feed([np.zeros(size, np.int32)])
    values, seen = np.empty(size, np.int32), []
    for number in range(6):
        values[...] = number
        feed.load(values)
        keep_busy()
        seen.append(feed.arrays[0].copy())
    values[...] = -1
    for number, array in enumerate(seen):
        np.testing.assert_array_equal(backend.to_host(array), number)


@pytest.mark.parametrize("size", [64, LARGE])
def test_the_last_array_that_is_loaded_may_be_shorter(backend, size):
    first, last = np.arange(3.0), np.arange(size, dtype=np.int32)
    feed = backend.runtime.feed([first, last])
    feed.load(first, last)
    feed.load(-first, -last[:10])
    np.testing.assert_array_equal(backend.to_host(feed.arrays[0]), -first)
    expected = np.concatenate([-last[:10], last[10:]])
    np.testing.assert_array_equal(backend.to_host(feed.arrays[1]), expected)


def test_each_of_several_runs_under_way_brings_its_own_result(backend):
    array = backend.zeros((300,), np.int32)  # more than a block has threads
    ring = backend.runtime.host_ring(array, 3)

    def work():
        array[...] += 1
        ring.write()

    program, begun, taken = backend.runtime.program(work), 0, []
    for ahead in [1, 3, 2, 3, 3, 1, 2]:  # the first runs are plain, the others a recorded graph
        while ring.waiting < ahead:
            program.run()
            ring.expect()
            begun += 1
        taken.append(ring.take())
    assert ring.waiting == 1
    ring.forget()
    for _ in range(2):
        program.run()
        ring.expect()
    taken += [ring.take(), ring.take()]
    numbers = [*range(1, begun), begun + 1, begun + 2]
    np.testing.assert_array_equal(taken, np.repeat(numbers, 300).reshape(-1, 300))
