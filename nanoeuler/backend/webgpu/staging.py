"""Small results on their way to the host, such as a step's loss or a token's logits.

wgpu's `read_buffer` makes a buffer for each, hands it over apart from the work before it, and has
another thread look for its end: on lavapipe twice the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import wgpu


class Staging:
    """A buffer of one device that the host may read."""

    size = 1 << 20

    def __init__(self, device: wgpu.GPUDevice):
        import wgpu
        from wgpu.backends.wgpu_native import _api as api

        self.device, self.api = device, api
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self.buffer = device.create_buffer(size=self.size, usage=usage)
        self.status: int | None = None

        def done(status: int, *_: Any) -> None:
            self.status = status

        # held, as the library calls it
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self.done = api.ffi.callback(kind, done)
        self.told = api.ffi.new("WGPUBufferMapCallbackInfo *")
        self.told.mode = api.lib.WGPUCallbackMode_AllowProcessEvents
        self.told.callback = self.done

    def read(self, size: int, meanwhile: Callable[[], None]) -> memoryview | None:
        """The first `size` bytes, once all work that was handed over is done; `meanwhile` is called
        before the host waits for it. None where the device does not give them."""
        api, lib, buffer = self.api, self.api.libf, self.buffer._internal
        self.status = None
        lib.wgpuBufferMapAsync(buffer, api.lib.WGPUMapMode_Read, 0, size, self.told[0])
        meanwhile()
        lib.wgpuDevicePoll(self.device._internal, True, api.ffi.NULL)
        if self.status != api.lib.WGPUMapAsyncStatus_Success:
            return None
        mapped = lib.wgpuBufferGetConstMappedRange(buffer, 0, size)
        data = memoryview(bytes(api.ffi.buffer(mapped, size)))
        lib.wgpuBufferUnmap(buffer)
        return data
