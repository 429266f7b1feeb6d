"""Small arrays on their way between host and device."""

import weakref
from collections.abc import Callable

import cupy
import cupyx
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.cuda.packing import offsets, views
from nanoeuler.backend.cuda.source import Source
from nanoeuler.backend.runtime import Feed, HostRing

TAKEN_AT_ONCE = 1 << 16
"""Bytes: so many are taken from ordinary memory by the call that copies them to the device. For
more, it would wait until the stream has nothing else to do."""


def hold_pinned(owner: object, arrived: cupy.cuda.Event) -> None:
    """Let others have the pinned memory of `owner` only when what is on its way has `arrived`."""
    weakref.finalize(owner, arrived.synchronize).atexit = False


def device_bytes(count: int, stream: cupy.cuda.Stream) -> Array:
    """Zeros."""
    flat = cupy.empty((count,), np.uint8)
    flat.data.memset_async(0, count, stream)
    return flat


def new_feed(
    arrays: list[np.ndarray], stream: cupy.cuda.Stream, copying: cupy.cuda.Stream
) -> "DeviceFeed":
    """`copying` is a stream for the copies of large ones."""
    parts = offsets(arrays)
    if parts[-1].stop <= TAKEN_AT_ONCE:
        return DeviceFeed(arrays, parts, stream)
    return WaitingFeed(arrays, parts, stream, copying)


class DeviceFeed(Feed):
    """Arrays in one flat array of the device, copied there in the order of the stream."""

    def __init__(
        self,
        arrays: list[np.ndarray],
        parts: list[slice],
        stream: cupy.cuda.Stream,
        memory: Callable[[int, type], np.ndarray] = np.empty,
    ):
        """`parts` are their bytes in the flat array; `memory` makes an array on the host."""
        size = parts[-1].stop
        self.stream, self.flat, host = stream, device_bytes(size, stream), memory(size, np.uint8)
        self.arrays: list[Array] = views(self.flat, parts, arrays)
        self.parts, self.address = views(host, parts, arrays), host.ctypes.data
        self.begin_of_last, self.bytes_of_last = parts[-1].start, self.parts[-1].strides[0]

    def load(self, *arrays: np.ndarray) -> None:
        used = self.write(arrays)
        self.flat.data.copy_from_host_async(self.address, used, self.stream)

    def write(self, arrays: tuple[np.ndarray, ...]) -> int:
        """Lay arrays out on the host. Returns the number of bytes up to their end."""
        (*parts, last_part), (*others, last) = self.parts, arrays
        for part, array in zip(parts, others, strict=True):
            part[...] = array
        last_part[: len(last)] = last
        return self.begin_of_last + len(last) * self.bytes_of_last


class WaitingFeed(DeviceFeed):
    """A feed of large arrays, from pinned memory.

    They are staged beside their target while the stream may still read the last content.
    """

    def __init__(
        self,
        arrays: list[np.ndarray],
        parts: list[slice],
        stream: cupy.cuda.Stream,
        copying: cupy.cuda.Stream,
    ):
        super().__init__(arrays, parts, stream, cupyx.empty_pinned)
        self.copying, self.waiting = copying, cupy.empty_like(self.flat)
        self.arrived, self.taken = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        # the memory just taken may belong to work that the stream has yet to finish
        self.taken.record(stream)
        hold_pinned(self, self.arrived)

    def load(self, *arrays: np.ndarray) -> None:
        self.arrived.synchronize()  # the pinned memory is free again
        used = self.write(arrays)
        self.copying.wait_event(self.taken)
        self.waiting.data.copy_from_host_async(self.address, used, self.copying)
        self.arrived.record(self.copying)
        self.stream.wait_event(self.arrived)
        self.flat.data.copy_from_device_async(self.waiting.data, used, self.stream)
        self.taken.record(self.stream)


class DeviceHostRing(HostRing):
    """Slots in pinned memory of the host, which a kernel writes; the device counts them, too."""

    def __init__(self, array: Array, slots: int, kernels: Kernels, source: Source):
        """`array` has a multiple of 4 bytes; `source` is that of to_host.cu."""
        super().__init__(array, slots)
        self.kernels, self.source = kernels, source
        self.pinned = cupyx.empty_pinned((slots, *array.shape), array.dtype)
        pinned, words = np.int64(self.pinned.ctypes.data), array.nbytes // 4
        slot = device_bytes(4 * words, kernels.stream).view(np.int32)
        self.target = pinned, slot, slots
        """For a kernel that writes what it computes itself: pinned memory, the slot that each row
        goes to next, and how many there are."""
        self.given = array, pinned, words, slot, slots
        self.arrived = [cupy.cuda.Event(disable_timing=True) for _ in range(slots)]
        for event in self.arrived:
            hold_pinned(self, event)

    def write(self) -> None:
        threads = ELEMENTWISE_THREADS
        self.kernels.launch(self.source, "to_host", 1, threads, *self.given, early=True)

    def expect(self) -> None:
        self.arrived[self.runs % self.slots].record(self.kernels.stream)
        super().expect()

    def content(self, slot: int) -> np.ndarray:
        self.arrived[slot].synchronize()
        return self.pinned[slot].copy()
