"""The norm behind a block: x ← x + h · norm(f(norm(x))), as in Gemma 2 (Gemma Team 2024).

It is the norm of one head as wide as the stream.
"""

from dataclasses import dataclass
from typing import Self

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, EulerStep, HeadNorm, RmsNorm
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.config import ModelConfig


@dataclass
class PostNorm:
    """Arrays of the norm behind one block, but for its weight; blocks of a kind share scratch."""

    norm: HeadNorm
    gradient_ND: Array  # scratch, for the backward pass alone

    @classmethod
    def of(
        cls, arena: Arena, ops: Backend, c: ModelConfig, N: int, backward_N: int, first: Self | None
    ) -> Self | None:
        """None in a model without such norms. `first`: see `Block.activations`."""
        if not c.post_norms:
            return None
        raw = arena.empty((N, 1, c.dim), ops.residual)
        inverse_rms = arena.empty((N, 1), ops.dtype)
        if first:
            scratch, dscratch = first.norm.scratch_NHE, first.norm.dscratch_NHE
            gradient = first.gradient_ND
        else:
            scratch = arena.empty((N, 1, c.dim), ops.activation)
            dscratch = arena.empty((backward_N, 1, c.dim), ops.activation)
            gradient = arena.empty((backward_N, c.dim), ops.activation)
        norm = HeadNorm(None, c.norm_epsilon, raw, inverse_rms, scratch, dscratch)
        return cls(norm, gradient)

    def forward(self, ops: Backend, product_ND: Array, weight_D: Array | None) -> None:
        """The norm of a block's last product, in its place."""
        ops.head_norm(product_ND[:, None], self.norm._replace(weight_E=weight_D))

    def step(
        self, ops: Backend, inner_NI: Array, weight_DI: Array, norm_D: Array | None, step: EulerStep
    ) -> None:
        """`Backend.euler_step` with the norm behind the product."""
        x, delta, step_size, following, _ = step
        assert isinstance(following, RmsNorm), "a GPT-2 has no norms behind its blocks"
        ops.linear(inner_NI, weight_DI, delta)
        self.forward(ops, delta, norm_D)
        ops.add_rms_norm(x, delta, step_size, following)

    def backward(
        self,
        ops: Backend,
        dx_ND: Array,
        weight_D: Array | None,
        dweight_D: Array | None,
        *,
        accumulate: bool,
    ) -> Array:
        """The gradient of the product, from that of the stream, which stays as it is."""
        self.gradient_ND[...] = dx_ND
        norm = self.norm._replace(weight_E=weight_D)
        ops.head_norm_backward(self.gradient_ND[:, None], norm, dweight_D, accumulate=accumulate)
        return self.gradient_ND
