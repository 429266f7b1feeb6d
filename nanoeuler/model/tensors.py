"""The rows of the tensor table: how parameters lie in a flat buffer."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from nanoeuler.backend.records import Array
from nanoeuler.model.config import ModelConfig, round_up

ALIGNMENT = 128
"""Tensors start on multiples of this many elements, so that a flat buffer consists of blocks with
one property each (weight decay or none)."""

INITIAL_STD = 0.02
"""Standard deviation of the initial values of most matrices."""


class NamedArrays(Protocol):
    """Arrays by a tensor's name, in its shape."""

    def __getitem__(self, name: str, /) -> Array: ...


class NamedViews(NamedArrays, Protocol):
    """Those of a flat buffer: see `FlatBuffer`."""

    def storage(self, name: str) -> Array: ...

    def packed(self, *names: str) -> Array: ...


@dataclass(frozen=True)
class TensorSpec:
    """A parameter as a block declares it. Matrices are (out, in), row-major."""

    name: str
    shape: tuple[int, ...]
    initial_std: float | None = INITIAL_STD  # of a normal distribution around 0; None: all ones
    storage_shape: tuple[int, ...] | None = None  # with padding; None: as `shape`
    packed: bool = False  # part of a packed product: rows are padded as `packed_rows` says
    transposed: bool = False  # in files it is (in, out)
    matrices: int = 1  # of equal size, one below the other: what each of them does is its own
    adapter: bool = False  # where there are any, they alone are trained


def norm_tensors(config: ModelConfig, weight: str, bias: str | None = None) -> list[TensorSpec]:
    """The parameters of a norm of these names; an RMSNorm has no bias."""
    biases = [] if bias is None else [TensorSpec(bias, (config.dim,), 0.0)]
    return [TensorSpec(weight, (config.dim,), None), *biases]


@dataclass(frozen=True)
class Tensor:
    """A row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    storage_shape: tuple[int, ...]
    offset: int  # of its first element in a flat buffer, in elements
    initial_std: float | None
    decay: bool  # does weight decay apply to it?
    packed: bool = False  # part of a packed product, of which the neighbours are the others
    transposed: bool = False  # in files
    matrices: int = 1  # of equal size, one below the other, that are this tensor
    trained: bool = True  # a frozen one has neither a gradient nor a part of checkpoints

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def storage_size(self) -> int:
        return math.prod(self.storage_shape)

    @property
    def stop(self) -> int:
        return self.offset + self.storage_size


def packed_rows(rows: int, columns: int) -> int:
    """Rows of a part of a packed product: padded until the next part starts on a block.

    So all parts together are one matrix, and the product is one.
    """
    return round_up(rows, ALIGNMENT // math.gcd(columns, ALIGNMENT))


def lay_out(specs: Iterable[TensorSpec]) -> tuple[Tensor, ...]:
    """The table of `specs`, one tensor behind the other. Matrices decay, vectors don't.

    Adapters are trained alone. They lie behind all others, so that what is trained is one part.
    """
    table: list[Tensor] = []
    offset = 0
    for spec in sorted(specs, key=lambda spec: spec.adapter):
        storage = spec.storage_shape or spec.shape
        if spec.packed and len(storage) == 2:
            storage = (packed_rows(*storage), storage[1])
        decay = len(spec.shape) > 1
        row = spec.name, spec.shape, storage, offset, spec.initial_std, decay
        table.append(Tensor(*row, spec.packed, spec.transposed, spec.matrices, spec.adapter))
        offset = round_up(table[-1].stop, ALIGNMENT)
    everything = not any(tensor.trained for tensor in table)
    return tuple(replace(each, trained=each.trained or everything) for each in table)
