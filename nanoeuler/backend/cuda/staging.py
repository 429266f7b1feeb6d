"""Small arrays on their way between host and device, through pinned memory and beside the work of
the stream."""

import weakref

import cupy
import cupyx
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.packing import lay_out, offsets
from nanoeuler.backend.programs import Feed, HostCopy


def hold_pinned(owner: object, arrived: cupy.cuda.Event) -> None:
    """Let others have the pinned memory of `owner` only when its last copy has `arrived`."""
    weakref.finalize(owner, arrived.synchronize).atexit = False


class DeviceFeed(Feed):
    """Arrays in one flat array of the device, whose next content waits beside it.

    It is copied there from pinned memory while the stream may still read the last content.
    """

    def __init__(
        self, arrays: list[np.ndarray], stream: cupy.cuda.Stream, copying: cupy.cuda.Stream
    ):
        """`copying` is the stream of the copies from the host."""
        parts = offsets(arrays)
        self.copying = copying
        self.flat, self.waiting = (cupy.empty((parts[-1].stop,), np.uint8) for _ in range(2))
        self.flat.data.memset_async(0, self.flat.nbytes, stream)
        self.pinned = cupyx.empty_pinned(self.flat.shape, np.uint8)
        self.arrived = cupy.cuda.Event(disable_timing=True)
        self.taken = cupy.cuda.Event(disable_timing=True)
        # the memory just taken may belong to work that the stream has yet to finish
        self.taken.record(stream)
        self.pending = False
        self.arrays: list[Array] = [
            self.flat[part].view(array.dtype).reshape(array.shape)
            for part, array in zip(parts, arrays, strict=True)
        ]
        hold_pinned(self, self.arrived)

    def load(self, *arrays: np.ndarray) -> None:
        self.arrived.synchronize()  # the pinned memory is free again
        lay_out(self.pinned, list(arrays))
        self.copying.wait_event(self.taken)
        self.waiting.set(self.pinned, self.copying)
        self.arrived.record(self.copying)
        self.pending = True

    def deliver(self, stream: cupy.cuda.Stream) -> None:
        """Copy the content to its target, before what the stream does next."""
        if self.pending:
            stream.wait_event(self.arrived)
            self.flat.data.copy_from_device_async(self.waiting.data, self.flat.nbytes, stream)
            self.taken.record(stream)
            self.pending = False


class DeviceHostCopy(HostCopy):
    """A small array on its way to pinned memory of the host."""

    def __init__(self, array: Array, stream: cupy.cuda.Stream):
        self.array, self.stream = array, stream
        self.pinned = cupyx.empty_pinned(array.shape, array.dtype)
        self.arrived = cupy.cuda.Event(disable_timing=True)
        hold_pinned(self, self.arrived)

    def start(self) -> None:
        """Copy the array as it is after the work asked for so far."""
        self.array.data.copy_to_host_async(self.pinned.ctypes.data, self.array.nbytes, self.stream)
        self.arrived.record(self.stream)

    def wait(self) -> np.ndarray:
        self.arrived.synchronize()
        return self.pinned.copy()
