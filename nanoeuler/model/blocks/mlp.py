"""MLP blocks without a gate: x ← x + h · down(f(up(norm(x)))).

f is ReLU² (So et al. 2021), max(x, 0)², for which no engine has a fused path, or GPT-2's GELU, with
LayerNorm and biases. The gradient of `up` takes its place in the backward pass.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, BlockForm, GeluForm, GeluWeights
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import BlockPass, Mlp, Weights
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, norm_tensors


@dataclass
class UpActivations:
    """Saved for the backward pass; `hidden` is scratch that all layers share."""

    up: Array  # (N, F); with recomputation, all layers share this too
    hidden: Array  # (N, F) f(up)


class Ungated(Mlp[Weights, UpActivations]):
    """The MLP block of one layer."""

    config: ModelConfig
    layer: int

    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: UpActivations | None,
    ) -> UpActivations:
        shape = rows * length, self.config.ffn_storage
        return UpActivations(
            up=arena.empty(shape, ops.activation),
            hidden=first.hidden if first else arena.empty(shape, ops.activation),
        )


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


class Relu2(Ungated[Relu2Weights]):
    """With ReLU²."""

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

    def inner(
        self, ops: Backend, weights: Relu2Weights, saved: UpActivations, normed: Array
    ) -> None:
        ops.linear(normed, weights.up, saved.up)
        ops.relu2(saved.up, saved.hidden)

    def backward(
        self,
        ops: Backend,
        weights: Relu2Weights,
        gradients: Relu2Weights,
        saved: UpActivations,
        p: BlockPass,
    ) -> None:
        w, dw, a, h, dx = weights, gradients, saved, self.form.step_size, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_backward_input(dx, w.down, a.hidden, h)
        ops.relu2_backward(a.hidden, a.up, a.up, a.hidden)
        dup = a.up  # the op has put the gradient in its place
        ops.linear_backward_weight(dx, a.hidden, dw.down, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dup, w.up, dw.up, dw.norm, p)

    def step(self, ops: Backend, weights: Relu2Weights, saved: UpActivations, out: Array) -> None:
        ops.relu2(saved.up, saved.hidden)
        ops.linear(saved.hidden, weights.down, out)


class Gelu(Ungated[GeluWeights]):
    """GPT-2's."""

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

    def inner(
        self, ops: Backend, weights: GeluWeights, saved: UpActivations, normed: Array
    ) -> None:
        ops.linear_gelu(normed, weights.up, weights.up_bias, saved.up, saved.hidden)

    def backward(
        self,
        ops: Backend,
        weights: GeluWeights,
        gradients: GeluWeights,
        saved: UpActivations,
        p: BlockPass,
    ) -> None:
        w, dw, a, h, dx = weights, gradients, saved, self.form.step_size, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_gelu_backward(dx, w.down, h, a.up, a.hidden)
        dup = a.up  # the op has put the gradient in its place
        arrays = dx, a.hidden, dw.down, dw.down_bias
        ops.linear_bias_backward(*arrays, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dup, w.up, dw.up, dw.norm, p, dw.up_bias, dw.norm_bias)

    def step(self, ops: Backend, weights: GeluWeights, saved: UpActivations, out: Array) -> None:
        ops.gelu(saved.up, saved.hidden)
        ops.linear_bias(saved.hidden, weights.down, weights.down_bias, out)
