"""Parts of the engine, its arrays and products, on which the files of its ops build."""

import math
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AttentionForm, BlockForm
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray, halves
from nanoeuler.backend.webgpu.device import Device, device
from nanoeuler.backend.webgpu.kernels import Kernels, flat_grid
from nanoeuler.backend.webgpu.runtime import WebGpuRuntime
from nanoeuler.errors import UserError

Array = DeviceArray
FLOAT32 = np.dtype(np.float32)
HEAD_WIDTH = 4
"""Numbers of a head that attention.wgsl reads together."""


class WebGpuParts(Backend):
    """Device, kernels, arrays; products."""

    device: Device

    def __init__(self) -> None:
        self.device = device()
        self.precision = "fp32"
        self.dtype = self.activation = self.residual = FLOAT32
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
            "device": self.device.name,
            "driver": info["description"],
            "interface": info["backend_type"],
            "wgpu": wgpu.__version__,
        }

    def check_form(self, form: BlockForm, dim: int) -> None:
        if isinstance(form, AttentionForm) and form.head_size % HEAD_WIDTH:
            raise UserError(
                f"--device webgpu: model.head_size is {form.head_size}; the kernels read "
                f"{HEAD_WIDTH} numbers of a head at a time, so it must be a multiple of "
                f"{HEAD_WIDTH}; use --device cpu"
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
        return self.kernels.to_host(array)

    def same(self, one: Array, other: Array) -> bool:
        """Do two arrays begin at the same place?"""
        return one.buffer is other.buffer and one.offset == other.offset

    def parts_of(self, array: Array) -> list[slice]:
        """Runs of rows, or of a flat array's elements in whole blocks, that a kernel can see."""
        block = 1 if array.ndim > 1 else sizes.RATE_BLOCK
        most = max(1, self.kernels.most_bytes // array.strides[0] // block) * block
        starts = range(0, len(array), most)
        return [slice(start, min(start + most, len(array))) for start in starts]

    # ---- matrix products

    def multiply(
        self,
        left_MK: Array,
        right_NK: Array,
        out_MN: Array,
        scale: float = 1.0,
        add_MN: Array | None = None,
        add_scale: float = 1.0,
    ) -> None:
        """out = scale · left rightᵀ + add_scale · add, each (…, rows, columns) of any strides."""
        *batch, M, K = left_MK.shape
        N = right_NK.shape[-2]
        if not M * N * math.prod(batch):
            return
        operands = left_MK, right_NK, out_MN, add_MN
        if max(array.extent for array in operands if array is not None) > self.kernels.most_bytes:
            self.multiply_in_parts(left_MK, right_NK, out_MN, scale, add_MN, add_scale)
            return
        arrays = {"left": left_MK, "right": right_NK, "out": out_MN}
        arrays["add"] = out_MN if add_MN is None else add_MN
        numbers: dict[str, Any] = {"rows": M, "columns": N, "inner": K, "scale": scale}
        numbers["add_scale"] = 0.0 if add_MN is None else add_scale
        along = {"LEFT_INNER": is_along(left_MK), "RIGHT_INNER": is_along(right_NK)}
        if M <= sizes.FEW_ROWS and not batch and along["RIGHT_INNER"]:
            grid = flat_grid(-(-N // sizes.FEW_ROWS_COLUMNS))
            self.launch("few_rows", "multiply", grid, **arrays, **numbers)
            return
        grid = -(-N // sizes.TILE), -(-M // sizes.TILE), math.prod(batch)
        self.launch("product", "multiply", grid, **arrays, **numbers, **along)

    def multiply_in_parts(
        self,
        left: Array,
        right: Array,
        out: Array,
        scale: float,
        add: Array | None,
        add_scale: float,
    ) -> None:
        """`multiply` in two halves: one of the operands is larger than a kernel can see."""
        *batch, _, K = left.shape
        most = self.kernels.most_bytes

        def rows(array: Array | None, *index: slice) -> Any:
            return None if array is None else array[index]

        if not batch and any(x.extent > most and not is_along(x) for x in (left, right)):
            # neighbours in memory have different k
            (_, first), (_, second) = halves((1, K))
            self.multiply(left[:, first], right[:, first], out, scale, add, add_scale)
            self.multiply(left[:, second], right[:, second], out, scale, out)
        elif not batch and right.extent > most:
            for (half,) in halves((len(right),)):
                added = rows(add, slice(None), half)
                self.multiply(left, right[half], out[:, half], scale, added, add_scale)
        else:
            for (half,) in halves((len(left),)):
                right_half = right[half] if batch else right
                self.multiply(left[half], right_half, out[half], scale, rows(add, half), add_scale)

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        self.multiply(x_NI, weight_OI, out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        self.multiply(dout_NO, weight_OI.T, dx_NI, scale)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        self.multiply(dout_NO.T, x_NI.T, dweight_OI, scale, dweight_OI if accumulate else None)

    def add_product(self, x_NR: Array, weight_RO: Array, out_NO: Array, scale: float) -> None:
        self.multiply(x_NR, weight_RO.T, out_NO, scale, out_NO)


def is_along(matrix: Array) -> bool:
    """Are neighbours of a row neighbours in memory?"""
    return matrix.strides[-1] == matrix.itemsize
