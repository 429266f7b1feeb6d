"""The MLP block without a gate: x ← x + h · down(max(up(norm(x)), 0)²), ReLU² (So et al. 2021).

The gradient of `up` takes its place in the backward pass. No engine has a fused path for it.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.arena import Arena
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, BlockForm, EulerStep, Norm
from nanoeuler.model.blocks.block import Block, BlockPass
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec


@dataclass(frozen=True)
class Relu2Form(BlockForm):
    """An MLP with ReLU²."""

    ffn: int


@dataclass
class Relu2Weights:
    """Weights of an MLP block, or their gradients; matrices are (out, in)."""

    norm: Array  # (D,)
    up: Array  # (F, D)
    down: Array  # (D, F)


@dataclass
class Relu2Activations:
    """Saved for the backward pass; `hidden` is scratch that all layers share."""

    up: Array  # (N, F); with recomputation, all layers share this too
    hidden: Array  # (N, F) max(up, 0)²


class Relu2(Block[Relu2Weights, Relu2Activations]):
    """The MLP block of one layer."""

    form: Relu2Form
    recomputable = True

    def __init__(self, config: ModelConfig, layer: int):
        self.config, self.layer = config, layer
        self.form = Relu2Form(config.step_size, config.norm_epsilon, config.ffn_storage)

    def tensors(self) -> list[TensorSpec]:
        c, prefix = self.config, f"model.layers.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * c.layers)
        shape, storage = (c.ffn, c.dim), (c.ffn_storage, c.dim)
        up, down = (f"{prefix}.mlp.{part}_proj.weight" for part in ("up", "down"))
        return [
            TensorSpec(f"{prefix}.post_attention_layernorm.weight", (c.dim,), None),
            TensorSpec(up, shape, storage_shape=storage),
            TensorSpec(down, shape[::-1], residual_std, storage[::-1]),
        ]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> Relu2Weights:
        norm, up, down = (tensor.name for tensor in self.tensors())
        return Relu2Weights(norms[norm], buffer.storage(up), buffer.storage(down))

    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: Relu2Activations | None,
    ) -> Relu2Activations:
        shape = rows * length, self.form.ffn
        return Relu2Activations(
            up=arena.empty(shape, ops.activation),
            hidden=first.hidden if first else arena.empty(shape, ops.activation),
        )

    def forward(
        self, ops: Backend, weights: Relu2Weights, saved: Relu2Activations, p: BlockPass
    ) -> None:
        ops.linear(p.norm.out_ND, weights.up, saved.up)
        ops.relu2(saved.up, saved.hidden)
        step = EulerStep(p.norm.x_ND, p.stream.delta, self.form.step_size, p.following)
        ops.euler_step(saved.hidden, weights.down, step)

    def recompute(
        self, ops: Backend, weights: Relu2Weights, saved: Relu2Activations, norm: Norm
    ) -> None:
        ops.norm(norm)
        ops.linear(norm.out_ND, weights.up, saved.up)

    def backward(
        self,
        ops: Backend,
        weights: Relu2Weights,
        gradients: Relu2Weights,
        saved: Relu2Activations,
        p: BlockPass,
    ) -> None:
        w, dw, a, h, dx = weights, gradients, saved, self.form.step_size, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_backward_input(dx, w.down, a.hidden, h)
        ops.relu2_backward(a.hidden, a.up, a.up, a.hidden)
        dup = a.up  # the op has put the gradient in its place
        ops.linear_backward_weight(dx, a.hidden, dw.down, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dup, w.up, dw.up, dw.norm, p)

    def step(
        self, ops: Backend, weights: Relu2Weights, saved: Relu2Activations, out: Array
    ) -> None:
        ops.relu2(saved.up, saved.hidden)
        ops.linear(saved.hidden, weights.down, out)
