"""Small results on their way to the host, such as a step's loss or a token's logits.

wgpu's `read_buffer` makes a buffer for each, hands it over apart from the work before it, and has
another thread look for its end: on lavapipe twice the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import wgpu

    from nanoeuler.backend.webgpu.arrays import DeviceArray

MOST_BYTES = 1 << 20


class Staging:
    """A buffer of one device that the host may read."""

    def __init__(self, device: wgpu.GPUDevice):
        import wgpu
        from wgpu.backends.wgpu_native import _api as api

        self.device, self.api = device, api
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self.buffer = device.create_buffer(size=MOST_BYTES, usage=usage)
        self.status: int | None = None

        def done(status: int, *_: Any) -> None:
            self.status = status

        # held, as the library calls it
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self.done = api.ffi.callback(kind, done)
        self.told = api.ffi.new("WGPUBufferMapCallbackInfo *")
        self.told.mode = api.lib.WGPUCallbackMode_AllowProcessEvents
        self.told.callback = self.done

    def read(
        self,
        array: DeviceArray,
        size: int,
        encoder: wgpu.GPUCommandEncoder,
        meanwhile: Callable[[], None],
    ) -> memoryview | None:
        """The first `size` bytes of an array, behind the work in `encoder`, which is handed over.
        `meanwhile` is called before the host waits.

        None for what is too large, or cannot be read so.
        """
        api, lib, queue = self.api, self.api.libf, self.device.queue
        if size > MOST_BYTES:
            queue.submit([encoder.finish()])
            return None
        encoder.copy_buffer_to_buffer(array.buffer, array.offset, self.buffer, 0, size)
        queue.submit([encoder.finish()])
        self.status = None
        buffer = self.buffer._internal
        lib.wgpuBufferMapAsync(buffer, api.lib.WGPUMapMode_Read, 0, size, self.told[0])
        meanwhile()
        lib.wgpuDevicePoll(self.device._internal, True, api.ffi.NULL)
        if self.status != api.lib.WGPUMapAsyncStatus_Success:
            return None
        mapped = lib.wgpuBufferGetConstMappedRange(buffer, 0, size)
        data = memoryview(bytes(api.ffi.buffer(mapped, size)))
        lib.wgpuBufferUnmap(buffer)
        return data
