"""Small arrays on their way between host and device, through pinned memory and beside the work of
the stream."""

import cupy
import cupyx
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.flat_places import lay_out


class Staged:
    """A flat array whose next content waits in a buffer on the device: it is copied there from
    pinned memory while the stream may still read the last content."""

    def __init__(self, target: Array, stream: cupy.cuda.Stream):
        self.target = target
        self.pinned = cupyx.empty_pinned(target.shape, target.dtype)
        self.waiting = cupy.empty(target.shape, target.dtype)
        self.arrived = cupy.cuda.Event(disable_timing=True)
        self.taken = cupy.cuda.Event(disable_timing=True)
        # the buffer's memory may belong to work that the stream has yet to finish
        self.taken.record(stream)
        self.pending = False

    def fill(self, values: list[np.ndarray], copying: cupy.cuda.Stream) -> None:
        self.arrived.synchronize()  # the pinned memory is free again
        lay_out(self.pinned, values)
        copying.wait_event(self.taken)
        self.waiting.set(self.pinned, copying)
        self.arrived.record(copying)
        self.pending = True

    def deliver(self, stream: cupy.cuda.Stream) -> None:
        """Copy the content to its target, before what the stream does next."""
        if self.pending:
            stream.wait_event(self.arrived)
            self.target.data.copy_from_device_async(self.waiting.data, self.target.nbytes, stream)
            self.taken.record(stream)
            self.pending = False


class HostCopy:
    """A small array that is copied to the host again and again, into pinned memory; the host need
    not wait for it at once."""

    def __init__(self, array: Array, stream: cupy.cuda.Stream):
        self.array, self.stream = array, stream
        self.pinned = cupyx.empty_pinned(array.shape, array.dtype)
        self.arrived = cupy.cuda.Event(disable_timing=True)

    def start(self) -> None:
        """Copy the array as it is after the work asked for so far."""
        self.array.data.copy_to_host_async(self.pinned.ctypes.data, self.array.nbytes, self.stream)
        self.arrived.record(self.stream)

    def wait(self) -> np.ndarray:
        self.arrived.synchronize()
        return self.pinned.copy()
