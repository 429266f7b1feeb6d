"""Launches of kernels: pipelines, arguments, and the stream of work to the device.

A launch gives arrays and numbers by the names that they have in the kernel's file: see
kernel_sources.py.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray, decode, encode, halves
from nanoeuler.backend.webgpu.copies import copy_arguments, merged
from nanoeuler.backend.webgpu.device import Device, one_line
from nanoeuler.backend.webgpu.kernel_sources import (
    BYTES,
    BYTES_OF_HALF,
    FLOAT16,
    NUMBERS,
    Source,
    source,
)
from nanoeuler.backend.webgpu.staging import Staging
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    import wgpu

WINDOW = 256
"""Bytes: what a kernel sees of a buffer begins on a multiple."""
KEPT_NUMBERS = 1 << 14
"""Buffers of arguments that are kept for the next launch with the same ones."""

TIMED_SECONDS, MOST_REPEATS = 0.01, 20
"""Launches are timed for about so long, beside which a wait is short, or so often."""

FLOATS = {np.dtype(np.float32), FLOAT16}

Grid = tuple[int, ...]
Command = tuple[Any, ...]
"""A launch: pipeline, arrays, grid."""


class Copied(NamedTuple):
    """Bytes that are copied to where the host reads them."""

    buffer: wgpu.GPUBuffer
    offset: int
    size: int


class Recording(list[Command]):
    """The launches of a program, to be made again."""

    ahead: wgpu.GPUCommandBuffer | None = None
    """The launches in the device's form, encoded before they are asked for."""
    copied: Copied | None = None
    """What is copied behind these: what was read last time."""


class Kernels:
    """The kernels of one device, and the one stream of work on it, in which all is in order.

    Launches are gathered, and handed over together: when there are many of them, when the host
    writes or reads, and when it waits.
    """

    def __init__(self, device: Device):
        import wgpu

        self.device, self.opened, self.queue = device, device.opened, device.opened.queue
        self.most_bytes = device.binding_limit - WINDOW
        """Bytes of an array that a kernel can see at once, wherever it begins."""
        usage = wgpu.BufferUsage
        self.storage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self.uniform = usage.UNIFORM | usage.COPY_DST
        self.errors = wgpu.GPUError
        self.modules: dict[str, wgpu.GPUShaderModule] = {}
        self.pipelines: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.numbers: dict[bytes, wgpu.GPUBuffer] = {}
        self.waiting: list[Command] = []
        self.recorded: Recording | None = None
        self.replayed: Callable[[], Recording | None] = lambda: None
        """What was replayed last: held weakly, as it holds its arrays."""
        self.scratch: dict[str, DeviceArray] = {}
        self.staging = Staging(self.opened)
        self.staged: Copied | None = None
        """What lies there, or will once the device is done."""

    # ---- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """A new array; WebGPU makes its memory zero. Raises `MemoryError`."""
        dtype, count = np.dtype(dtype), math.prod(shape)
        size = max(16, -(-count * dtype.itemsize // 16) * 16)
        with self.failures_told(size):
            buffer = self.opened.create_buffer(size=size, usage=self.storage)
        flat = DeviceArray(self, buffer, 0, (count,), (dtype.itemsize,), dtype)
        return flat.reshape(shape)

    @contextmanager
    def failures_told(self, size: int = 0) -> Iterator[None]:
        """Say in one sentence what a user can do about an error of wgpu.

        `size`: of a buffer that is asked for; MemoryError is raised where there is none.
        """
        try:
            yield
        except self.errors as error:
            if "lost" in str(error):
                raise UserError(
                    f"--device webgpu: the connection to {self.device.name} is lost (its driver "
                    "was restarted, or it was taken away); what was saved is there: run the same "
                    "command again to go on from it"
                ) from error
            if size:
                raise MemoryError(
                    f"--device webgpu: {self.device.name} gives no {size / 1e6:,.0f} MB at once "
                    f"({one_line(error)}); take fewer tokens at once (micro_batch_rows)"
                ) from error
            raise

    def from_host(self, values: np.ndarray) -> DeviceArray:
        array = self.empty(values.shape, values.dtype)
        self.write(array, values)
        return array

    def write(self, array: DeviceArray, values: np.ndarray) -> None:
        """The values of a contiguous array of the same size and type."""
        data = encode(values).reshape(-1).view(np.uint8)
        if len(data) % 4:
            data = np.pad(data, (0, -len(data) % 4))
        if len(data):
            self.flush()
            self.staged = None
            with self.failures_told():
                self.queue.write_buffer(array.buffer, array.offset, data)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        if not array.contiguous or array.offset % 4:
            array = array.copy()
        size = -(-array.nbytes // 4) * 4
        with self.failures_told():
            data = None
            if size <= self.staging.size:
                copied = Copied(array.buffer, array.offset, size)
                if self.waiting or self.staged != copied:
                    launches, self.waiting = self.waiting, []
                    self.submit(self.encoded(launches, copied))
                data = self.staging.read(size, lambda: self.encode_ahead(copied))
            if data is None:
                self.flush()
                data = self.queue.read_buffer(array.buffer, array.offset, size)
        return decode(data, array.shape, array.dtype)

    def take(self, purpose: str, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        """Scratch until the next call for `purpose`. Work that is recorded keeps what it took."""
        count = math.prod(shape)
        kept = self.scratch.get(purpose)
        if kept is None or kept.size < count or kept.dtype != dtype:
            kept = self.scratch[purpose] = self.empty((count,), dtype)
        return kept[:count].reshape(shape)

    # ---- launches

    def launch(self, name: str, kernel: str, grid: Grid, /, **given: Any) -> None:
        """Launch `kernel` of the file `name`.

        `given` are its arrays and numbers, and in capitals constants of this launch.
        """
        constants = {key: given.pop(key) for key in [*given] if key.isupper()}
        arrays = {key: value for key, value in given.items() if isinstance(value, DeviceArray)}
        halves = frozenset(key for key, array in arrays.items() if array.dtype == FLOAT16)
        code = source(name, tuple(constants.items()), halves)
        windows: list[tuple[int, wgpu.GPUBuffer, int, int]] = []
        numbers = [0] * len(code.fields)
        for key, array in arrays.items():
            extent = array.extent
            if extent > self.most_bytes:
                raise self.too_large(array, key)
            number, unit = code.bindings[key]
            if (unit == BYTES_OF_HALF) != (array.dtype == FLOAT16):
                raise TypeError(
                    f"{name}.wgsl: {key} is {array.dtype}, another array of its role not"
                )
            start = array.offset // WINDOW * WINDOW
            end = -(-(array.offset + max(unit, extent)) // 4) * 4
            windows.append((number, array.buffer, start, end - start))
            strides, many = (0, *array.strides), array.ndim > 2
            row, batch = (strides[-3], strides[1]) if many else (strides[-2], 0)
            found = array.offset - start, batch, row, strides[-2], strides[-1]
            for field, place in code.places[key]:
                numbers[field] = found[place] // unit
        for key, value in given.items():
            if key not in arrays:
                if key not in code.fields:
                    raise KeyError(f"{name}.wgsl has no argument {key}")
                numbers[code.fields[key]] = value
        with self.failures_told():
            buffer = self.arguments(code.packing.pack(*numbers))
            windows.append((code.bindings[NUMBERS][0], buffer, 0, buffer.size))
            pipeline, layout = self.pipeline(code, kernel)
            group = bind_group(self.opened, layout, windows)
        self.do((pipeline, group, (*grid, 1, 1)[:3]))

    def too_large(self, array: DeviceArray, name: str) -> UserError:
        """The error for an array that is larger than what a kernel may see of a buffer."""
        return UserError(
            f"--device webgpu: the array '{name}' {array.shape} has {array.extent / 1e6:,.0f} "
            f"MB, and {self.device.name} lets a kernel see {self.most_bytes / 1e6:,.0f} MB of "
            "one; take fewer tokens at once (micro_batch_rows), or --device cpu"
        )

    def pipeline(self, code: Source, kernel: str) -> tuple[Any, Any]:
        """The pipeline, and the layout of its arrays."""
        key = code.text, kernel
        if key not in self.pipelines:
            if code.text not in self.modules:
                self.modules[code.text] = unchecked_module(self.opened, code.text)
            stage = {"module": self.modules[code.text], "entry_point": kernel}
            pipeline = self.opened.create_compute_pipeline(layout="auto", compute=stage)
            self.pipelines[key] = pipeline, pipeline.get_bind_group_layout(0)
        return self.pipelines[key]

    def arguments(self, packed: bytes) -> wgpu.GPUBuffer:
        """A buffer with these numbers."""
        if packed not in self.numbers:
            if len(self.numbers) > KEPT_NUMBERS:
                self.numbers.clear()  # those in use are held by what uses them
            padded = packed + bytes(-len(packed) % 16)
            buffer = self.opened.create_buffer_with_data(data=padded, usage=self.uniform)
            self.numbers[packed] = buffer
        return self.numbers[packed]

    def launch_on(self, name: str, kernel: str, elements: int, /, **given: Any) -> None:
        """Launch a thread for each element."""
        if elements:
            self.launch(name, kernel, flat_grid(-(-elements // sizes.THREADS)), **given)

    # ---- the stream

    def do(self, command: Command) -> None:
        if self.recorded is not None:
            self.recorded.append(command)
        self.waiting.append(command)
        if len(self.waiting) >= sizes.DISPATCHES_AT_ONCE:
            self.flush()

    def replay(self, commands: Recording) -> None:
        """Make the launches of a program again."""
        self.flush()
        if commands.ahead:
            with self.failures_told():
                self.submit(commands.ahead)
            commands.ahead, self.staged = None, commands.copied
        else:
            for start in range(0, len(commands), sizes.DISPATCHES_AT_ONCE):
                self.waiting = commands[start : start + sizes.DISPATCHES_AT_ONCE]
                self.flush()
        self.replayed = weakref.ref(commands)

    def encode_ahead(self, copied: Copied) -> None:
        """Called while the host waits for what was copied: what it replayed last will come again,
        and the same will be read behind it."""
        commands = self.replayed()
        if commands and not commands.ahead:
            commands.ahead, commands.copied = self.encoded(commands, copied), copied

    def flush(self) -> None:
        """Hand over what was gathered."""
        if self.waiting:
            launches, self.waiting = self.waiting, []
            with self.failures_told():
                self.submit(self.encoded(launches))

    def submit(self, launches: wgpu.GPUCommandBuffer) -> None:
        self.staged = None
        self.queue.submit([launches])

    def encoded(
        self, commands: list[Command], copied: Copied | None = None
    ) -> wgpu.GPUCommandBuffer:
        """Launches in the device's form, and a copy for the host behind them; by the library's own
        calls, which take a tenth of the time of wgpu's methods around them."""
        from wgpu.backends.wgpu_native import ffi, lib

        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_arrays = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        encoder = self.opened.create_command_encoder()
        if commands:
            compute = encoder.begin_compute_pass()
            into = compute._internal
            for pipeline, group, grid in commands:
                set_pipeline(into, pipeline._internal)
                set_arrays(into, 0, group._internal, 0, ffi.NULL)
                dispatch(into, *grid)
            compute.end()
        if copied:
            encoder.copy_buffer_to_buffer(*copied[:2], self.staging.buffer, 0, copied.size)
        return encoder.finish()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Collects the launches that are made meanwhile."""
        commands = self.recorded = Recording()
        try:
            yield commands
        finally:
            self.recorded = None

    def seconds(self, work: Callable[[], None]) -> float:
        """Time of launches, repeated until it can be measured; no recording takes note of them."""
        recorded, self.recorded = self.recorded, None

        def timed(count: int) -> float:
            self.finish()
            began = time.perf_counter()
            for _ in range(count):
                work()
            self.finish()
            return (time.perf_counter() - began) / count

        try:
            timed(1)  # which compiles
            return timed(max(1, min(MOST_REPEATS, round(TIMED_SECONDS / timed(1)))))
        finally:
            self.recorded = recorded

    def finish(self) -> None:
        """Wait until all is done: the last of it is a copy to the host."""
        self.to_host(self.take("finish", (1,)))

    # ---- copies

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """target ← source, spread to its shape; float32 and float16 become each other."""
        source, target = (
            each.view(FLOAT16) if each.itemsize == BYTES_OF_HALF else each
            for each in (source, target)
        )
        converts = FLOAT16 in (source.dtype, target.dtype)
        if converts:
            known = {source.dtype, target.dtype} <= FLOATS
        else:
            known = source.itemsize == target.itemsize and target.itemsize % BYTES == 0
        if not known:
            raise TypeError(f"{source.dtype} cannot be copied to {target.dtype} on the GPU")
        if target.size == 0:
            return
        spread = source.like(np.broadcast_to(source.layout(), target.shape))
        if max(target.extent, spread.extent) > self.most_bytes:
            for half in halves(target.shape):
                self.copy(spread[half], target[half])
            return
        if converts:
            kernel, words, units = "convert", 1, (target.itemsize, spread.itemsize)
            arrays = {"floats": spread, "converted": target}
        else:
            kernel, words, units = "copy", target.itemsize // BYTES, (BYTES, BYTES)
            arrays = {"source": spread, "copied": target}
        count = target.size * words
        dimensions = merged(target.shape, target.strides, spread.strides, words, units)
        self.launch_on("copy", kernel, count, count=count, **arrays, **copy_arguments(dimensions))

    def fill(self, target: DeviceArray, value: float) -> None:
        if target.size == 0:
            return
        if target.extent > self.most_bytes:
            for half in halves(target.shape):
                self.fill(target[half], value)
            return
        if target.dtype == FLOAT16:
            self.copy(self.from_host(np.full(1, value, np.float32)), target)
            return
        if target.itemsize != 4 and value != 0:
            raise TypeError(f"an array of {target.dtype} on the GPU is filled with 0 only")
        words = target.itemsize // 4
        dimensions = merged(target.shape, target.strides, (0,) * target.ndim, words)
        bits = int(np.array(value, target.dtype if words == 1 else np.int32).view(np.uint32))
        count, given = target.size * words, {"copied": target, "value": bits}
        self.launch_on("copy", "fill", count, count=count, **given, **copy_arguments(dimensions))


def bind_group(
    device: wgpu.GPUDevice,
    layout: wgpu.GPUBindGroupLayout,
    windows: list[tuple[int, wgpu.GPUBuffer, int, int]],
) -> wgpu.GPUBindGroup:
    """Number, buffer, offset and bytes of each array, for a launch. wgpu's own method takes three
    times as long, in which a launch takes half of its time."""
    from wgpu.backends.wgpu_native import _api as api

    entries = api.ffi.new("WGPUBindGroupEntry[]", len(windows))
    for entry, (number, buffer, offset, size) in zip(entries, windows, strict=True):
        entry.binding, entry.buffer = number, buffer._internal
        entry.offset, entry.size = offset, size
    described = api.ffi.new("WGPUBindGroupDescriptor *")
    described.layout, described.entries = layout._internal, entries
    described.entryCount = len(windows)
    made = api.libf.wgpuDeviceCreateBindGroup(device._internal, described)
    return api.GPUBindGroup("", made, device)


def unchecked_module(device: wgpu.GPUDevice, code: str) -> wgpu.GPUShaderModule:
    """A module without what wgpu adds to the shaders of strangers: a check of every index, and a
    counter in every loop, which keeps compilers from unrolling it."""
    from wgpu.backends.wgpu_native import _api as api

    text = api.to_c_string_view(code)
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=text)
    source[0].chain.next, source[0].chain.sType = api.ffi.NULL, api.lib.WGPUSType_ShaderSourceWGSL
    chain, label = api.ffi.cast("WGPUChainedStruct *", source), api.to_c_string_view("")
    described = api.new_struct_p("WGPUShaderModuleDescriptor *", nextInChain=chain, label=label)
    no_checks = api.lib.WGPUShaderRuntimeChecks_None
    made = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, described, no_checks)
    return api.GPUShaderModule("", made, device)


def flat_grid(workgroups: int) -> Grid:
    """A grid of so many workgroups, in several rows where one dimension does not hold them."""
    across = min(workgroups, sizes.MOST_WORKGROUPS)
    return across, -(-workgroups // across) if across else 0
