"""An engine's ops for a block that is frozen but for adapters of its matrices.

Where a matrix has adapters, an op takes an `AdaptedMatrix`. An engine's fused ops know none, so
these are made of products again. A gradient that is None is not computed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AdaptedMatrix, Adapter, Array


@dataclass
class AdapterScratch:
    """Arrays that all blocks of a kind share, and the random numbers of the pass at hand."""

    inner_NR: Array  # x Aᵀ
    dinner_NR: Array
    dropped: dict[int, Array]  # by the width of x, (N, I); none without dropout
    seeds_N: Array = None  # of dropout; None: nothing is dropped


class Gradient(NamedTuple):
    """Where the gradients of adapters go."""

    of: AdaptedMatrix
    into: list[Adapter]


class AdaptedOps:
    """The engine is `plain`: its ops know no adapters, and do all else."""

    linear_bias = Backend.linear_bias
    linear_bias_backward = Backend.linear_bias_backward
    euler_step = Backend.euler_step
    linear_rope = Backend.linear_rope
    linear_swiglu = Backend.linear_swiglu
    linear_swiglu_backward = Backend.linear_swiglu_backward
    linear_gelu = Backend.linear_gelu
    linear_gelu_backward = Backend.linear_gelu_backward

    def __init__(self, engine: Backend, scratch: AdapterScratch, dropout: float):
        self.plain, self.scratch = engine, scratch
        self.dropout = 0.0 if scratch.seeds_N is None else dropout

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def linear(self, x_NI: Array, weight: Array | AdaptedMatrix, out_NO: Array) -> None:
        if not isinstance(weight, AdaptedMatrix):
            self.plain.linear(x_NI, weight, out_NO)
            return
        self.plain.linear(x_NI, weight.weight_OI, out_NO)
        x_NI, scale = self.dropped(x_NI, weight), self.factor(weight)
        for rows, down_RI, up_RO in weight.adapters:
            inner_NR = self.scratch.inner_NR[: len(x_NI)]
            self.plain.linear(x_NI, down_RI, inner_NR)
            self.plain.add_product(inner_NR, up_RO, out_NO[:, rows], scale)

    def linear_backward_input(
        self, dout_NO: Array, weight: Array | AdaptedMatrix, dx_NI: Array, scale: float = 1.0
    ) -> None:
        if not isinstance(weight, AdaptedMatrix):
            self.plain.linear_backward_input(dout_NO, weight, dx_NI, scale)
            return
        product: Callable[..., None] = self.plain.linear_backward_input
        for _, dinner_NR, down_RI in self.inner_gradients(dout_NO, weight):
            product(dinner_NR, down_RI, dx_NI, scale * self.factor(weight))
            product = self.plain.add_product
        if self.dropout:
            self.plain.dropout(dx_NI, self.scratch.seeds_N, weight.salt, self.dropout, dx_NI)
        self.plain.add_product(dout_NO, weight.weight_OI, dx_NI, scale)

    def linear_backward_weight(
        self,
        dout_NO: Array,
        x_NI: Array,
        dweight: Array | Gradient | None,
        *,
        accumulate: bool,
        scale: float = 1,
    ) -> None:
        if dweight is None:
            return
        if not isinstance(dweight, Gradient):
            self.plain.linear_backward_weight(
                dout_NO, x_NI, dweight, accumulate=accumulate, scale=scale
            )
            return
        weight, into = dweight
        x_NI, how = self.dropped(x_NI, weight), (accumulate, scale * self.factor(weight))
        parts = zip(self.inner_gradients(dout_NO, weight), into, strict=True)
        for (part_NO, dinner_NR, down_RI), gradient in parts:
            inner_NR = self.scratch.inner_NR[: len(x_NI)]
            self.plain.linear(x_NI, down_RI, inner_NR)
            self.add_gradient(dinner_NR, x_NI, gradient.down_RI, *how)
            self.add_gradient(inner_NR, part_NO, gradient.up_RO, *how)

    def add_gradient(
        self, dout: Array, x: Array, dweight: Array, accumulate: bool, scale: float
    ) -> None:
        self.plain.linear_backward_weight(dout, x, dweight, accumulate=accumulate, scale=scale)

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array | None, *, accumulate: bool, scale: float = 1
    ) -> None:
        if dbias_O is not None:
            self.plain.bias_backward(dout_NO, dbias_O, accumulate=accumulate, scale=scale)

    def inner_gradients(
        self, dout_NO: Array, weight: AdaptedMatrix
    ) -> Iterator[tuple[Array, Array, Array]]:
        """For each adapter: its columns of `dout`, the unscaled gradient of x Aᵀ, and A."""
        for rows, down_RI, up_RO in weight.adapters:
            dinner_NR = self.scratch.dinner_NR[: len(dout_NO)]
            self.plain.linear(dout_NO[:, rows], up_RO, dinner_NR)
            yield dout_NO[:, rows], dinner_NR, down_RI

    def dropped(self, x_NI: Array, weight: AdaptedMatrix) -> Array:
        """dropout(x) but for its scale."""
        if not self.dropout:
            return x_NI
        out_NI = self.scratch.dropped[x_NI.shape[1]]
        self.plain.dropout(x_NI, self.scratch.seeds_N, weight.salt, self.dropout, out_NI)
        return out_NI

    def factor(self, weight: AdaptedMatrix) -> float:
        return weight.scale / (1 - self.dropout)
