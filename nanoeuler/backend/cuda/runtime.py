"""How the GPU engine's work is recorded and replayed, and what comes and goes meanwhile.

The first run of a program is plain: it compiles, chooses algorithms and takes memory. The second
records a CUDA graph, and every later one replays that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import cupy
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.cublaslt import CublasLt
from nanoeuler.backend.cuda.fp8 import Fp8
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.cuda.source import Source
from nanoeuler.backend.cuda.staging import DeviceFeed, DeviceHostRing, new_feed
from nanoeuler.backend.records import ModelWeights
from nanoeuler.backend.runtime import Program, Runtime


class CudaRuntime(Runtime):
    """One stream, on which all work is in order, and another that brings large inputs."""

    def __init__(
        self,
        device: int,
        kernels: Kernels,
        to_host: Source,
        products: CublasLt,
        scratch: Scratch,
        fp8: Fp8 | None,
        *,
        graphs: bool,
    ):
        """`device` is its number, `to_host` the kernel of host rings. Without `graphs` nothing is
        recorded."""
        self.device, self.kernels, self.to_host = device, kernels, to_host
        self.products, self.scratch, self.fp8, self.graphs = products, scratch, fp8, graphs
        self.stream = kernels.stream
        self.copying = cupy.cuda.Stream(non_blocking=True)

    def feed(self, arrays: list[np.ndarray]) -> DeviceFeed:
        return new_feed(arrays, self.stream, self.copying)

    def program(
        self, function: Callable[[], None], *, training: bool = False, once: bool = False
    ) -> Program:
        return GraphProgram(function, self, training=training, tuned=training and not once)

    def host_ring(self, array: Array, slots: int) -> DeviceHostRing:
        return DeviceHostRing(array, slots, self.kernels, self.to_host)

    def enter_thread(self) -> None:
        cupy.cuda.Device(self.device).use()
        self.stream.use()

    def finish(self) -> None:
        self.stream.synchronize()

    def slices(self, elements: int) -> tuple[int, int]:
        """All tokens that memory holds, in one replica."""
        return 1 << 60, 1

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
