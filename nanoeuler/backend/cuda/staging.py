"""Small arrays on their way between host and device, through pinned memory."""

import weakref

import cupy
import cupyx
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.cuda.packing import offsets, views
from nanoeuler.backend.cuda.source import Source
from nanoeuler.backend.programs import Feed, HostRing

WORTH_WAITING = 1 << 16
"""Bytes: a copy of fewer takes less time on the stream than the events that take it off."""


def hold_pinned(owner: object, arrived: cupy.cuda.Event) -> None:
    """Let others have the pinned memory of `owner` only when what is on its way has `arrived`."""
    weakref.finalize(owner, arrived.synchronize).atexit = False


class Feeds:
    """The feeds of the programs that run on a stream."""

    def __init__(self, stream: cupy.cuda.Stream):
        self.stream, self.copying = stream, cupy.cuda.Stream(non_blocking=True)
        self.loaded: list[DeviceFeed] = []
        """Those whose content the next program takes."""

    def new(self, arrays: list[np.ndarray]) -> "DeviceFeed":
        is_small = offsets(arrays)[-1].stop <= WORTH_WAITING
        return DeviceFeed(arrays, self) if is_small else WaitingFeed(arrays, self)

    def deliver(self) -> None:
        """Bring what was loaded to its target, before what the stream does next."""
        while self.loaded:
            self.loaded.pop().bring()


class DeviceFeed(Feed):
    """Arrays in one flat array of the device, copied there from pinned memory."""

    def __init__(self, arrays: list[np.ndarray], feeds: Feeds):
        self.feeds, self.stream = feeds, feeds.stream
        self.flat = cupy.empty((offsets(arrays)[-1].stop,), np.uint8)
        self.flat.data.memset_async(0, self.flat.nbytes, self.stream)
        pinned = cupyx.empty_pinned(self.flat.shape, np.uint8)
        self.pinned, self.address = views(pinned, arrays), pinned.ctypes.data
        self.arrived = cupy.cuda.Event(disable_timing=True)
        self.arrays: list[Array] = views(self.flat, arrays)
        hold_pinned(self, self.arrived)

    def load(self, *arrays: np.ndarray) -> None:
        self.arrived.synchronize()  # the pinned memory is free again
        for target, array in zip(self.pinned, arrays, strict=True):
            target[...] = array
        if self not in self.feeds.loaded:
            self.feeds.loaded.append(self)

    def copy_from_host(self, target: Array, stream: cupy.cuda.Stream) -> None:
        target.data.copy_from_host_async(self.address, target.nbytes, stream)
        self.arrived.record(stream)

    def bring(self) -> None:
        """See `Feeds.deliver`."""
        self.copy_from_host(self.flat, self.stream)


class WaitingFeed(DeviceFeed):
    """The same for large arrays: they wait beside their target, copied there while the stream may
    still read the last content."""

    def __init__(self, arrays: list[np.ndarray], feeds: Feeds):
        super().__init__(arrays, feeds)
        self.copying = feeds.copying
        self.waiting = cupy.empty_like(self.flat)
        self.taken = cupy.cuda.Event(disable_timing=True)
        # the memory just taken may belong to work that the stream has yet to finish
        self.taken.record(self.stream)

    def load(self, *arrays: np.ndarray) -> None:
        super().load(*arrays)
        self.copying.wait_event(self.taken)
        self.copy_from_host(self.waiting, self.copying)

    def bring(self) -> None:
        self.stream.wait_event(self.arrived)
        self.flat.data.copy_from_device_async(self.waiting.data, self.flat.nbytes, self.stream)
        self.taken.record(self.stream)


class DeviceHostRing(HostRing):
    """Slots in pinned memory of the host, which a kernel writes; the device counts them, too."""

    def __init__(self, array: Array, slots: int, kernels: Kernels, source: Source):
        """`array` has a multiple of 4 bytes; `source` is that of to_host.cu."""
        super().__init__(array, slots)
        self.stream = kernels.stream
        self.pinned = cupyx.empty_pinned((slots, *array.shape), array.dtype)
        self.slot = cupy.empty((1,), np.int32)
        self.slot.data.memset_async(0, self.slot.nbytes, self.stream)
        pinned, words = np.int64(self.pinned.ctypes.data), array.nbytes // 4
        arguments = array, pinned, words, self.slot, slots
        threads = ELEMENTWISE_THREADS
        self.writing = kernels.prepare(source, "to_host", 1, threads, *arguments)
        self.arrived = [cupy.cuda.Event(disable_timing=True) for _ in range(slots)]
        for event in self.arrived:
            hold_pinned(self, event)

    def write(self) -> None:
        self.writing.launch()

    def expect(self) -> None:
        self.arrived[self.runs % self.slots].record(self.stream)
        super().expect()

    def content(self, slot: int) -> np.ndarray:
        self.arrived[slot].synchronize()
        return self.pinned[slot].copy()
