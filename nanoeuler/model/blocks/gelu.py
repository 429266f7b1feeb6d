"""GPT-2's MLP block: x ← x + h · down(gelu(up(norm(x)))), with LayerNorm and biases.

The gradient of `up` takes its place in the backward pass.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.arena import Arena
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, EulerStep, GeluForm, GeluWeights, Norm
from nanoeuler.model.blocks.block import Block, BlockPass
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, norm_tensors


@dataclass
class GeluActivations:
    """Saved for the backward pass; `hidden` is scratch that all layers share."""

    up: Array  # (N, F); with recomputation, all layers share this too
    hidden: Array  # (N, F) gelu(up)


class Gelu(Block[GeluWeights, GeluActivations]):
    """The MLP block of one layer."""

    form: GeluForm
    recomputable = True

    def __init__(self, config: ModelConfig, layer: int):
        self.config, self.layer = config, layer
        self.form = GeluForm(config.step_size, config.norm_epsilon, config.ffn_storage)

    def tensors(self) -> list[TensorSpec]:
        c, prefix = self.config, f"transformer.h.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * c.layers)
        shape, storage = (c.ffn, c.dim), (c.ffn_storage, c.dim)
        up, down = f"{prefix}.mlp.c_fc", f"{prefix}.mlp.c_proj"
        return [
            *norm_tensors(c, f"{prefix}.ln_2.weight", f"{prefix}.ln_2.bias"),
            TensorSpec(f"{up}.weight", shape, storage_shape=storage, transposed=True),
            TensorSpec(f"{up}.bias", (c.ffn,), 0.0, (c.ffn_storage,)),
            TensorSpec(f"{down}.weight", shape[::-1], residual_std, storage[::-1], transposed=True),
            TensorSpec(f"{down}.bias", (c.dim,), 0.0),
        ]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> GeluWeights:
        norm, norm_bias, *products = (tensor.name for tensor in self.tensors())
        return GeluWeights(norms[norm], norms[norm_bias], *map(buffer.storage, products))

    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: GeluActivations | None,
    ) -> GeluActivations:
        shape = rows * length, self.form.ffn
        return GeluActivations(
            up=arena.empty(shape, ops.activation),
            hidden=first.hidden if first else arena.empty(shape, ops.activation),
        )

    def forward(
        self, ops: Backend, weights: GeluWeights, saved: GeluActivations, p: BlockPass
    ) -> None:
        w = weights
        ops.linear_gelu(p.norm.out_ND, w.up, w.up_bias, saved.up, saved.hidden)
        stream = p.norm.x_ND, p.stream.delta
        step = EulerStep(*stream, self.form.step_size, p.following, w.down_bias)
        ops.euler_step(saved.hidden, w.down, step)

    def recompute(
        self, ops: Backend, weights: GeluWeights, saved: GeluActivations, norm: Norm
    ) -> None:
        ops.norm(norm)
        ops.linear_gelu(norm.out_ND, weights.up, weights.up_bias, saved.up, saved.hidden)

    def backward(
        self,
        ops: Backend,
        weights: GeluWeights,
        gradients: GeluWeights,
        saved: GeluActivations,
        p: BlockPass,
    ) -> None:
        w, dw, a, h, dx = weights, gradients, saved, self.form.step_size, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_gelu_backward(dx, w.down, h, a.up, a.hidden)
        dup = a.up  # the op has put the gradient in its place
        arrays = dx, a.hidden, dw.down, dw.down_bias
        ops.linear_bias_backward(*arrays, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dup, w.up, dw.up, dw.norm, p, dw.up_bias, dw.norm_bias)

    def step(self, ops: Backend, weights: GeluWeights, saved: GeluActivations, out: Array) -> None:
        ops.gelu(saved.up, saved.hidden)
        ops.linear_bias(saved.hidden, weights.down, weights.down_bias, out)
