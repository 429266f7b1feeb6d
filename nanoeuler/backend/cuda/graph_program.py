"""A program of the GPU engine.

Its first run is plain: it compiles, chooses algorithms and takes memory. The second records a CUDA
graph, and every later one replays that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import cupy
from cupy import ndarray as Array

from nanoeuler.backend.programs import Program

if TYPE_CHECKING:
    from nanoeuler.backend.cuda.engine import CudaBackend


class GraphProgram(Program):
    """Work that is done once, recorded at its second run, and replayed from then on."""

    def __init__(
        self, function: Callable[[], None], engine: "CudaBackend", *, training: bool, tuned: bool
    ):
        super().__init__(function)
        self.engine, self.training, self.tuned = engine, training, tuned
        self.ran = False
        self.graph: cupy.cuda.Graph | None = None
        self.scratch: list[Array] = []
        """Memory whose addresses the graph holds: it must live as long."""

    def run(self) -> None:
        engine, stream = self.engine, self.engine.stream
        stream.use()  # what CuPy itself launches, a fill say, belongs on this stream too
        if self.training and engine.fp8 and not engine.fp8.ready:
            with self.as_meant():
                self.function()
            engine.fp8.ready = True
            return
        if self.graph is None:
            with self.as_meant():
                if not self.ran or not engine.graphs:
                    self.function()
                    self.ran = True
                    return
                self.graph = self.record()
        self.graph.launch(stream)

    @contextmanager
    def as_meant(self) -> Iterator[None]:
        """The engine computes what is asked for meanwhile as this program is to be computed."""
        products, fp8 = self.engine.products, self.engine.fp8
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
        stream = self.engine.stream
        with self.engine.scratch.recording() as self.scratch:
            stream.begin_capture()
            try:
                self.function()
            except BaseException:  # or the stream would stay in capture
                with suppress(cupy.cuda.runtime.CUDARuntimeError):  # another has yet to join it
                    stream.end_capture()
                raise
            return stream.end_capture()
