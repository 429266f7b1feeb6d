"""How this engine's work is recorded, fed and waited for.

WebGPU replays nothing by itself: a recorded program is the list of its launches, with the arrays
and numbers of each bound once, which are handed over again without any other work of the host.
"""

from collections.abc import Callable

import numpy as np

from nanoeuler.backend.runtime import Feed, Program, Runtime
from nanoeuler.backend.webgpu.arrays import DeviceArray, encode
from nanoeuler.backend.webgpu.kernels import Kernels, Recording

ALIGNMENT = 256
"""Bytes: each array of a feed starts on a multiple."""


class DeviceFeed(Feed):
    """Arrays in one buffer, written in the order of the stream."""

    def __init__(self, arrays: list[np.ndarray], kernels: Kernels):
        self.kernels = kernels
        self.starts = [0]
        for array in arrays:
            self.starts.append(-(-(self.starts[-1] + array.nbytes) // ALIGNMENT) * ALIGNMENT)
        self.whole = kernels.empty((self.starts[-1],), np.uint8)
        self.host = np.zeros(self.starts[-1], np.uint8)
        self.arrays: list[DeviceArray] = [
            self.whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            for start, array in zip(self.starts, arrays, strict=False)
        ]

    def load(self, *arrays: np.ndarray) -> None:
        used = 0
        for start, into, array in zip(self.starts, self.arrays, arrays, strict=False):
            values = np.ascontiguousarray(array, into.dtype)
            data = encode(values).reshape(-1).view(np.uint8)
            used = start + len(data)
            self.host[start:used] = data
        self.kernels.write(self.whole, self.host[:used])


class RecordedProgram(Program):
    """Work that is recorded at its first run, and replayed from then on."""

    def __init__(self, function: Callable[[], None], kernels: Kernels):
        super().__init__(function)
        self.kernels = kernels
        self.commands: Recording | None = None

    def run(self) -> None:
        if self.commands is None:
            with self.kernels.recording() as commands:
                self.function()
            self.commands = commands
            return
        self.kernels.replay(self.commands)


class WebGpuRuntime(Runtime):
    """One stream of work."""

    def __init__(self, kernels: Kernels):
        self.kernels = kernels

    def feed(self, arrays: list[np.ndarray]) -> DeviceFeed:
        return DeviceFeed(arrays, self.kernels)

    def program(
        self, function: Callable[[], None], *, training: bool = False, untimed: bool = False
    ) -> RecordedProgram:
        return RecordedProgram(function, self.kernels)

    def finish(self) -> None:
        """Wait until all work asked for is done."""
        self.kernels.finish()
