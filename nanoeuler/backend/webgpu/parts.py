"""Parts of the engine, its device and arrays, on which the files of its ops build."""

from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AttentionForm, BlockForm
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray
from nanoeuler.backend.webgpu.device import Device, device
from nanoeuler.backend.webgpu.kernel_sources import FLOAT16
from nanoeuler.backend.webgpu.kernels import Kernels
from nanoeuler.backend.webgpu.runtime import WebGpuRuntime
from nanoeuler.errors import UserError

Array = DeviceArray
FLOAT32 = np.dtype(np.float32)
LOSS_SCALE = 2.0**13
"""Where gradients are float16. A token of a step of 8,192 has a weight of 2⁻¹³: the gradients of
its logits are then probabilities, of which float16 has those from 6e-8 on."""
HEAD_WIDTH, MOST_HEAD_SIZE = 4, 4 * sizes.THREADS
"""Numbers of a head that attention.wgsl reads together, and of all of it at most."""


class WebGpuParts(Backend):
    """Device, kernels, arrays."""

    device: Device

    def __init__(self, precision: str = "fp32"):
        """`precision`: fp16, or auto on a GPU, keeps the matrices of models that are not trained in
        float16, where the adapter reads it; fp16 also activations and their gradients. All is
        computed in float32."""
        self.device = device()
        halves = precision == "fp16" or (precision == "auto" and not self.device.software)
        self.halves_weights = halves and self.device.has_halves
        self.precision = "fp16" if precision == "fp16" and self.device.has_halves else "fp32"
        self.dtype = self.residual = FLOAT32
        self.activation = FLOAT16 if self.precision == "fp16" else FLOAT32
        self.loss_scale = LOSS_SCALE if self.precision == "fp16" else 1.0
        self.algorithms: dict[str, str] = {}
        self.kernels = Kernels(self.device)
        self.launch, self.launch_on = self.kernels.launch, self.kernels.launch_on
        self.runtime: WebGpuRuntime = WebGpuRuntime(self.kernels)
        self.logits_at_once = min(self.logits_at_once, self.kernels.most_bytes // FLOAT32.itemsize)

    def environment(self) -> dict[str, Any]:
        import wgpu

        info = self.device.adapter.info
        return {
            "engine": self.name,
            "precision": self.precision,
            "device": self.device.name,
            "driver": info["description"],
            "interface": info["backend_type"],
            "wgpu": wgpu.__version__,
        }

    def check_form(self, form: BlockForm, dim: int) -> None:
        if isinstance(form, AttentionForm) and not reads_heads(form.head_size):
            raise UserError(
                f"--device webgpu: model.head_size is {form.head_size}; the kernels read heads of "
                f"at most {MOST_HEAD_SIZE} numbers, {HEAD_WIDTH} at a time, so it must be a "
                f"multiple of {HEAD_WIDTH}; use --device cpu"
            )

    def activation_budget(self, state_bytes: int) -> int:
        """Three quarters of the device's memory, less the training state; one buffer's worth."""
        rest = 3 * self.device.memory // 4 - state_bytes
        return max(0, min(rest, self.device.buffer_limit))

    # ---- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return self.kernels.empty(shape, dtype or self.dtype)

    zeros = empty  # WebGPU's memory is zero

    def from_host(self, array: np.ndarray, dtype: Any = None) -> Array:
        if dtype is None:
            dtype = self.dtype if array.dtype.kind == "f" else array.dtype
        return self.kernels.from_host(np.ascontiguousarray(array, dtype))

    def to_host(self, array: Array) -> np.ndarray:
        found = self.kernels.to_host(array)
        return found.astype(np.float32) if array.dtype == FLOAT16 else found

    def same(self, one: Array, other: Array) -> bool:
        """Do two arrays begin at the same place?"""
        return one.buffer is other.buffer and one.offset == other.offset

    def parts_of(self, array: Array) -> list[slice]:
        """Runs of rows, or of a flat array's elements in whole blocks, that a kernel can see."""
        block = 1 if array.ndim > 1 else sizes.RATE_BLOCK
        most = max(1, self.kernels.most_bytes // array.strides[0] // block) * block
        starts = range(0, len(array), most)
        return [slice(start, min(start + most, len(array))) for start in starts]


def reads_heads(head_size: int) -> bool:
    """Do the kernels read heads of that size?"""
    return head_size % HEAD_WIDTH == 0 and head_size <= MOST_HEAD_SIZE
