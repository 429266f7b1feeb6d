"""A block in training with dropout (Srivastava et al. 2014).

Its last product does not see a share of what is in front of it, another one at each step: of
attention's output, and of an MLP's hidden layer. What is left counts 1 / (1 − share) times, so that
nothing changes but in training.
"""

from typing import Any, cast

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, EulerStep, Norm
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import Block, BlockPass, Mlp
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec


class Dropped(Block[Any, Any]):
    """Weights and activations are the block's own, which computes as ever with `DroppingOps`."""

    def __init__(self, block: Block[Any, Any], share: float, index: int):
        """`index`: its number in the model, which tells its random numbers from others'."""
        self.block, self.share, self.index = block, share, index
        self.form, self.cache_shape = block.form, block.cache_shape
        self.recomputable = block.recomputable
        self.is_mlp = isinstance(block, Mlp)

    def tensors(self) -> list[TensorSpec]:
        return self.block.tensors()

    def flops(self) -> tuple[int, int]:
        return self.block.flops()

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> Any:
        return self.block.weights(buffer, norms)

    def activations(self, arena: Arena, ops: Backend, rows: int, length: int, **given: Any) -> Any:
        return self.block.activations(arena, ops, rows, length, **given)

    def ops(self, engine: Backend, p: BlockPass, weights: Any, gradients: Any = None) -> Backend:
        """The engine where no random numbers come, as in a measurement on held-out text."""
        if p.rows.seeds_N is None:
            return engine
        last = [w.down if self.is_mlp else w.output for w in (weights, gradients) if w is not None]
        return cast(Backend, DroppingOps(engine, self, last, p.rows.seeds_N))

    def forward(self, ops: Backend, weights: Any, saved: Any, p: BlockPass) -> None:
        self.block.forward(self.ops(ops, p, weights), weights, saved, p)

    def backward(
        self, ops: Backend, weights: Any, gradients: Any, saved: Any, p: BlockPass
    ) -> None:
        self.block.backward(self.ops(ops, p, weights, gradients), weights, gradients, saved, p)

    def recompute(self, ops: Backend, weights: Any, saved: Any, norm: Norm) -> None:
        self.block.recompute(ops, weights, saved, norm)

    def step(self, ops: Backend, weights: Any, saved: Any, out: Array) -> None:
        self.block.step(ops, weights, saved, out)


class DroppingOps:
    """The ops of an engine, `plain`. Those that take the input of the last product drop of it in
    its place."""

    linear_swiglu_backward = Backend.linear_swiglu_backward
    linear_gelu_backward = Backend.linear_gelu_backward
    linear_bias_backward = Backend.linear_bias_backward

    def __init__(self, engine: Backend, block: Dropped, last: list[Array], seeds_N: Array):
        """`last`: the matrix of the last product, and its gradient on the way back."""
        self.plain, self.last, self.is_mlp = engine, last, block.is_mlp
        self.how, self.factor = (seeds_N, block.index, block.share), 1 / (1 - block.share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def is_last(self, matrix: Array) -> bool:
        return any(matrix is each for each in self.last)

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        if step.bias_D is None:
            self.plain.dropout(inner_NI, *self.how, inner_NI)
            larger = step._replace(step_size=step.step_size * self.factor)
            self.plain.euler_step(inner_NI, weight_DI, larger)
        else:  # a larger step would enlarge the bias, too
            Backend.euler_step(cast(Backend, self), inner_NI, weight_DI, step)

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        if self.is_last(weight_OI):
            self.plain.dropout(x_NI, *self.how, x_NI)
        self.plain.linear(x_NI, weight_OI, out_NO)
        if self.is_last(weight_OI):
            self.plain.scale(out_NO, self.factor)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        if not self.is_last(weight_OI):
            self.plain.linear_backward_input(dout_NO, weight_OI, dx_NI, scale)
            return
        self.plain.linear_backward_input(dout_NO, weight_OI, dx_NI, scale * self.factor)
        self.plain.dropout(dx_NI, *self.how, dx_NI)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        if self.is_last(dweight_OI):
            if self.is_mlp:  # which has computed x again; attention's is still without its share
                self.plain.dropout(x_NI, *self.how, x_NI)
            scale *= self.factor
        self.plain.linear_backward_weight(
            dout_NO, x_NI, dweight_OI, accumulate=accumulate, scale=scale
        )
