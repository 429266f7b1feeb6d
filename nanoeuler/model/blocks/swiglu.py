"""The MLP block: x ← x + h · down(silu(gate(norm(x))) · up(norm(x))), SwiGLU (Shazeer 2020).

Gate and up come from one packed product. Its gradient takes its place in the backward pass.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, GateUp, SwigluForm, SwigluWeights
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import BlockPass, Mlp
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, packed_rows


@dataclass
class SwigluActivations:
    """Saved for the backward pass; `hidden` is scratch that all layers share."""

    gate_up: GateUp  # (N, columns); with recomputation, all layers share this too
    hidden: Array  # (N, F) silu(gate) · up


class Swiglu(Mlp[SwigluWeights, SwigluActivations]):
    """The MLP block of one layer."""

    form: SwigluForm

    def __init__(self, config: ModelConfig, layer: int):
        c = config
        self.config, self.layer = config, layer
        up = packed_rows(c.ffn_storage, c.dim)
        self.form = SwigluForm(
            c.step_size,
            c.norm_epsilon,
            c.ffn_storage,
            columns=2 * up,
            gate=slice(0, c.ffn_storage),
            up=slice(up, up + c.ffn_storage),
        )

    def tensors(self) -> list[TensorSpec]:
        c, prefix = self.config, f"model.layers.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * c.layers)
        shape, storage = (c.ffn, c.dim), (c.ffn_storage, c.dim)
        gate, up, down = (f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        return [
            TensorSpec(f"{prefix}.post_attention_layernorm.weight", (c.dim,), None),
            TensorSpec(gate, shape, storage_shape=storage, packed=True),
            TensorSpec(up, shape, storage_shape=storage, packed=True),
            TensorSpec(down, shape[::-1], residual_std, storage[::-1]),
        ]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> SwigluWeights:
        norm, gate, up, down = (tensor.name for tensor in self.tensors())
        return SwigluWeights(norms[norm], buffer.packed(gate, up), buffer.storage(down))

    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: SwigluActivations | None,
    ) -> SwigluActivations:
        N = rows * length
        packed = arena.empty((N, self.form.columns), ops.activation)
        return SwigluActivations(
            gate_up=GateUp(packed, self.form.gate, self.form.up),
            hidden=first.hidden if first else arena.empty((N, self.form.ffn), ops.activation),
        )

    def inner(
        self, ops: Backend, weights: SwigluWeights, saved: SwigluActivations, normed: Array
    ) -> None:
        ops.linear_swiglu(normed, weights.gate_up, saved.gate_up, saved.hidden)

    def backward(
        self,
        ops: Backend,
        weights: SwigluWeights,
        gradients: SwigluWeights,
        saved: SwigluActivations,
        p: BlockPass,
    ) -> None:
        w, dw, a, h, dx = weights, gradients, saved, self.form.step_size, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_swiglu_backward(dx, w.down, h, a.gate_up, a.hidden)
        dgate_up = a.gate_up.packed_NO  # the op has put the gradients in their place
        ops.linear_backward_weight(dx, a.hidden, dw.down, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dgate_up, w.gate_up, dw.gate_up, dw.norm, p)

    def step(
        self, ops: Backend, weights: SwigluWeights, saved: SwigluActivations, out: Array
    ) -> None:
        ops.swiglu(*saved.gate_up.parts, saved.hidden)
        ops.linear(saved.hidden, weights.down, out)
