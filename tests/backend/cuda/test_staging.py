"""Small arrays on their way between host and device: nobody reads or writes them too early."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
SIZES = 64, 1 << 15
"""Numbers that go straight to the stream, and that wait beside it."""


@pytest.mark.parametrize("size", SIZES)
def test_pinned_memory_is_given_to_others_only_when_no_copy_writes_to_it(size):
    import cupy

    from nanoeuler.backend.cuda.engine import CudaBackend

    backend = CudaBackend("fp32")
    backend.enter_thread()
    slow, array = cupy.ones((8192, 8192), np.float32), cupy.full(size, 7, np.int32)
    ring = backend.host_ring(array, 1)
    memory = ring.pinned.ctypes.data
    for _ in range(10):
        slow @ slow
    ring.write()
    ring.expect()
    del ring
    feed = backend.feed([np.zeros(size, np.int32)])
    assert feed.address == memory
    feed.load(np.arange(size, dtype=np.int32))
    backend.feeds.deliver()
    np.testing.assert_array_equal(backend.to_host(feed.arrays[0]), np.arange(size))


@pytest.mark.parametrize("size", SIZES)
def test_what_is_loaded_next_does_not_reach_work_that_was_asked_for_before(size):
    import cupy

    from nanoeuler.backend.cuda.engine import CudaBackend

    backend = CudaBackend("fp32")
    backend.enter_thread()
    slow, feed = cupy.ones((8192, 8192), np.float32), backend.feed([np.zeros(size, np.int32)])
    seen = []
    for number in range(4):
        feed.load(np.full(size, number, np.int32))
        backend.feeds.deliver()
        for _ in range(3):
            slow @ slow
        seen.append(feed.arrays[0].copy())
    for number, array in enumerate(seen):
        np.testing.assert_array_equal(backend.to_host(array), number)


def test_each_of_several_runs_under_way_brings_its_own_result():
    from nanoeuler.backend.cuda.engine import CudaBackend

    backend = CudaBackend("fp32")
    backend.enter_thread()
    array = backend.zeros((300,), np.int32)  # more than a block has threads
    ring = backend.host_ring(array, 3)

    def work():
        array[...] += 1
        ring.write()

    program, begun, taken = backend.program(work), 0, []
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
