"""How the GPU engine's work is recorded and replayed, and what comes and goes meanwhile.

The first run of a program is plain: it compiles, chooses algorithms and takes memory. The second
records a CUDA graph, and every later one replays that.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import cupy
import cupyx
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.cublaslt import CublasLt
from nanoeuler.backend.cuda.fp8 import Fp8
from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS, WIDTH, KernelSources
from nanoeuler.backend.cuda.kernels import Kernels, Source, blocks
from nanoeuler.backend.cuda.scratch import Scratch, offsets, views
from nanoeuler.backend.records import ModelWeights
from nanoeuler.backend.runtime import Feed, HostRing, Program, Runtime

# ---- small arrays on their way between host and device


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


# ---- programs


class CudaRuntime(Runtime):
    """One stream, on which all work is in order, and another that brings large inputs."""

    def __init__(
        self,
        device: int,
        kernels: Kernels,
        sources: KernelSources,
        products: CublasLt,
        scratch: Scratch,
        fp8: Fp8 | None,
        *,
        graphs: bool,
    ):
        """`device` is its number. Without `graphs` nothing is recorded."""
        self.device, self.kernels, self.sources = device, kernels, sources
        self.kept_addresses: dict[tuple[int, ...], Array] = {}
        self.products, self.scratch, self.fp8, self.graphs = products, scratch, fp8, graphs
        self.stream = kernels.stream
        self.copying = cupy.cuda.Stream(non_blocking=True)

    def feed(self, arrays: list[np.ndarray]) -> DeviceFeed:
        parts = offsets(arrays)
        if parts[-1].stop <= TAKEN_AT_ONCE:
            return DeviceFeed(arrays, parts, self.stream)
        return WaitingFeed(arrays, parts, self.stream, self.copying)

    def program(
        self, function: Callable[[], None], *, training: bool = False, untimed: bool = False
    ) -> Program:
        return GraphProgram(function, self, training=training, tuned=training and not untimed)

    def host_ring(self, array: Array, slots: int) -> DeviceHostRing:
        return DeviceHostRing(array, slots, self.kernels, self.sources.to_host())

    def enter_thread(self) -> None:
        cupy.cuda.Device(self.device).use()
        self.stream.use()

    def finish(self) -> None:
        self.stream.synchronize()

    def slices(self, elements: int) -> tuple[int, int]:
        """All tokens that memory holds, in one replica."""
        return 1 << 60, 1

    lane_tokens = 32768
    least_lane_tokens = 65536  # smaller ones keep an H200 less busy: docs/scaling.md

    def add_neighbours(self, arrays: Sequence[Array]) -> None:
        if len(arrays) == 1:
            return
        addresses = tuple(array.data.ptr for array in arrays)
        if addresses not in self.kept_addresses:  # which a graph cannot bring from the host
            self.kept_addresses[addresses] = cupy.array(addresses, np.int64)
        first, source = arrays[0], self.sources.lanes(len(arrays))
        told = self.kept_addresses[addresses], np.int64(first.size)
        grid = blocks(first.size, ELEMENTWISE_THREADS * WIDTH)
        self.kernels.launch(source, "add_neighbours", grid, ELEMENTWISE_THREADS, *told)

    # ---- fp8

    def training_weights(self, weights: ModelWeights) -> ModelWeights:
        if self.fp8 and self.fp8.active:
            self.fp8.begin_step(weights)
        return weights

    @property
    def prepares_weights(self) -> bool:
        return self.fp8 is not None and self.fp8.active

    @property
    def scales(self) -> dict[str, list[float]]:
        return self.fp8.state if self.fp8 else {}

    @scales.setter
    def scales(self, saved: dict[str, list[float]]) -> None:
        if self.fp8:
            self.stream.use()
            self.fp8.state = saved

    @property
    def noted(self) -> Array | None:
        # no number in a slot is negative: as integers they have the order of the floats
        return self.fp8.slots.view(np.int32) if self.fp8 else None

    @property
    def saturated(self) -> int | None:
        return self.fp8.saturated if self.fp8 else None


class GraphProgram(Program):
    """Work that is done once, recorded at its second run, and replayed from then on."""

    def __init__(
        self, function: Callable[[], None], runtime: CudaRuntime, *, training: bool, tuned: bool
    ):
        super().__init__(function)
        self.runtime, self.training, self.tuned = runtime, training, tuned
        self.ran = False
        self.graph: cupy.cuda.Graph | None = None
        self.scratch: list[Array] = []
        """Memory whose addresses the graph holds: it must live as long."""

    def run(self) -> None:
        runtime, stream = self.runtime, self.runtime.stream
        stream.use()  # what CuPy itself launches, a fill say, belongs on this stream too
        if self.training and runtime.fp8 and not runtime.fp8.ready:
            with self.as_meant():
                self.function()
            runtime.fp8.ready = True
            return
        if self.graph is None:
            with self.as_meant():
                if not self.ran or not runtime.graphs:
                    self.function()
                    self.ran = True
                    return
                self.graph = self.record()
        self.graph.launch(stream)

    @contextmanager
    def as_meant(self) -> Iterator[None]:
        """The engine computes what is asked for meanwhile as this program is to be computed."""
        products, fp8 = self.runtime.products, self.runtime.fp8
        products.tuned = self.tuned
        if fp8:
            fp8.active = self.training
        try:
            yield
        finally:
            products.tuned = False
            if fp8:
                fp8.active = False

    def record(self) -> cupy.cuda.Graph:
        stream = self.runtime.stream
        with self.runtime.scratch.recording() as self.scratch:
            stream.begin_capture()
            try:
                self.function()
            except BaseException:  # or the stream would stay in capture
                with suppress(cupy.cuda.runtime.CUDARuntimeError):  # another has yet to join it
                    stream.end_capture()
                raise
            return stream.end_capture()
