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
    copy = backend.host_copy(array)
    memory = copy.pinned.ctypes.data
    for _ in range(10):
        slow @ slow
    copy.start()
    del copy
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
