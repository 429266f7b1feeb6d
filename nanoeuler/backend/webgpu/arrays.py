"""Arrays in a GPU's memory: views of buffers, with NumPy's shapes, types and strides.

Types are those of 4 bytes, float16, float64 and uint8. WGSL knows no float64: a number of that type
is a pair of float32 whose sum counts, with 48 bits. Bytes are memory for others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import wgpu

FLOAT64 = np.dtype(np.float64)
INDICES = (slice, int, np.integer, type(...))
ADDRESS = 1 << 20
"""Where NumPy is told that a buffer begins: any number but 0 that alignments divide."""


class Copying(Protocol):
    """What an array asks of the device that it lies on."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray: ...

    def from_host(self, values: np.ndarray) -> DeviceArray: ...

    def copy(self, source: DeviceArray, target: DeviceArray) -> None: ...

    def fill(self, target: DeviceArray, value: float) -> None: ...


class DeviceArray:
    """A part of a buffer. Slices, reshapes and `view` share its memory, as NumPy's do."""

    __slots__ = ("buffer", "dtype", "kernels", "offset", "shape", "strides")

    def __init__(
        self,
        kernels: Copying,
        buffer: wgpu.GPUBuffer,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype,
    ):
        """`offset` and `strides` are in bytes."""
        self.kernels, self.buffer, self.offset = kernels, buffer, offset
        self.shape, self.strides, self.dtype = shape, strides, dtype

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, offset={self.offset})"

    # ---- sizes

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[index] for index in range(len(self)))

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last one; strides are not negative."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return sum((count - 1) * stride for count, stride in pairs) + self.itemsize

    @property
    def contiguous(self) -> bool:
        return self.layout().flags.c_contiguous

    # ---- views

    def layout(self) -> np.ndarray:
        """An array of NumPy's laid out like this one, whose elements nobody may read.

        NumPy works out what a slice, a reshape or another type make of its address and strides.
        """
        described = {
            "version": 3,
            "data": (ADDRESS + self.offset, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
        }
        return np.asarray(SimpleNamespace(__array_interface__=described))

    def like(self, layout: np.ndarray) -> DeviceArray:
        offset = layout.__array_interface__["data"][0] - ADDRESS
        given = offset, layout.shape, layout.strides, layout.dtype
        return DeviceArray(self.kernels, self.buffer, *given)

    def __getitem__(self, index: Any) -> DeviceArray:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or isinstance(part, INDICES) for part in parts):
            raise TypeError(f"an array of the GPU is indexed by slices and whole numbers: {index}")
        # with an ellipsis NumPy gives a view, also where one element is meant
        return self.like(self.layout()[parts if Ellipsis in parts else (*parts, ...)])

    def reshape(self, *shape: Any) -> DeviceArray:
        """Raises ValueError where that would take a copy."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return self.like(self.layout().reshape(wanted, copy=False))

    def view(self, dtype: Any) -> DeviceArray:
        return self.like(self.layout().view(dtype))

    @property
    def T(self) -> DeviceArray:
        return self.like(self.layout().T)

    # ---- contents

    def copy(self) -> DeviceArray:
        target = self.kernels.empty(self.shape, self.dtype)
        self.kernels.copy(self, target)
        return target

    def __setitem__(self, index: Any, values: Any) -> None:
        target = self[index]
        if isinstance(values, DeviceArray):
            self.kernels.copy(values, target)
        elif isinstance(values, np.ndarray) and values.ndim:
            self.kernels.copy(self.kernels.from_host(np.broadcast_to(values, target.shape)), target)
        else:
            self.kernels.fill(target, values)


def encode(values: np.ndarray) -> np.ndarray:
    """Values as a buffer holds them: float64 as pairs of float32."""
    values = np.ascontiguousarray(values)
    if values.dtype != FLOAT64:
        return values
    pairs = np.empty((*values.shape, 2), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        pairs[..., 0] = values
        rest = values - pairs[..., 0]
    pairs[..., 1] = np.where(np.isfinite(rest), rest, 0)
    return pairs


def decode(data: memoryview, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What `encode` was given."""
    if dtype != FLOAT64:
        return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape).copy()
    pairs = np.frombuffer(data, np.float32, 2 * math.prod(shape)).reshape(*shape, 2)
    return pairs[..., 0].astype(np.float64) + pairs[..., 1]


def halves(shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Indices of the halves of an array, along its first dimension that has some."""
    axis = next(axis for axis, count in enumerate(shape) if count > 1)
    before, middle = (slice(None),) * axis, shape[axis] // 2
    return (*before, slice(middle)), (*before, slice(middle, None))
