"""The MLP block: x ← x + h · down(silu(gate(norm(x))) · up(norm(x))), SwiGLU (Shazeer 2020), or
with GELU in the place of silu, GEGLU.

Gate and up come from one packed product. Its gradient takes its place in the backward pass.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, EulerStep, GateUp, SwigluForm, SwigluWeights
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import BlockPass, Mlp
from nanoeuler.model.blocks.post_norm import PostNorm
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, packed_rows


@dataclass
class SwigluActivations:
    """Saved for the backward pass; `hidden` is scratch that all layers share."""

    gate_up: GateUp  # (N, columns); with recomputation, all layers share this too
    hidden: Array  # (N, F) silu(gate) · up
    post_norm: PostNorm | None


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
            gelu=c.activation == "geglu",
            post_norm=c.post_norms,
        )
        self.recomputable = not c.post_norms  # which keep the product

    def tensors(self) -> list[TensorSpec]:
        c, prefix = self.config, f"model.layers.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * c.layers)
        shape, storage = (c.ffn, c.dim), (c.ffn_storage, c.dim)
        gate, up, down = (f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        norms = ["post_attention_layernorm"]
        if c.post_norms:  # the names in Gemma 2, where that one stands behind attention
            norms = ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        norm, *behind = (TensorSpec(f"{prefix}.{name}.weight", (c.dim,), None) for name in norms)
        return [
            norm,
            TensorSpec(gate, shape, storage_shape=storage, packed=True),
            TensorSpec(up, shape, storage_shape=storage, packed=True),
            TensorSpec(down, shape[::-1], residual_std, storage[::-1]),
            *behind,
        ]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> SwigluWeights:
        norm, gate, up, down, *behind = (tensor.name for tensor in self.tensors())
        matrices = buffer.packed(gate, up), buffer.storage(down)
        return SwigluWeights(norms[norm], *matrices, *(norms[name] for name in behind))

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
        N, c = rows * length, self.config
        backward_N = N if training else 0
        packed = arena.empty((N, self.form.columns), ops.activation)
        return SwigluActivations(
            gate_up=GateUp(packed, self.form.gate, self.form.up),
            hidden=first.hidden if first else arena.empty((N, self.form.ffn), ops.activation),
            post_norm=PostNorm.of(arena, ops, c, N, backward_N, first.post_norm if first else None),
        )

    def forward(
        self, ops: Backend, weights: SwigluWeights, saved: SwigluActivations, p: BlockPass
    ) -> None:
        if saved.post_norm is None:
            super().forward(ops, weights, saved, p)
            return
        self.inner(ops, weights, saved, p.norm.out_ND)
        step = EulerStep(p.norm.x_ND, p.stream.delta, self.form.step_size, p.following)
        saved.post_norm.step(ops, saved.hidden, weights.down, weights.post_norm, step)

    def inner(
        self, ops: Backend, weights: SwigluWeights, saved: SwigluActivations, normed: Array
    ) -> None:
        if self.form.gelu:
            ops.linear(normed, weights.gate_up, saved.gate_up.packed_NO)
            ops.geglu(*saved.gate_up.parts, saved.hidden)
        else:
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
        if a.post_norm:
            norms = w.post_norm, dw.post_norm
            dx = a.post_norm.backward(ops, dx, *norms, accumulate=p.accumulate)
        # dx flows past the block unchanged, and into it scaled by h
        if self.form.gelu:
            ops.linear_backward_input(dx, w.down, a.hidden, h)
            ops.geglu_backward(a.hidden, *a.gate_up.parts, *a.gate_up.parts)
        else:
            ops.linear_swiglu_backward(dx, w.down, h, a.gate_up, a.hidden)
        dgate_up = a.gate_up.packed_NO  # the op has put the gradients in their place
        ops.linear_backward_weight(dx, a.hidden, dw.down, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dgate_up, w.gate_up, dw.gate_up, dw.norm, p)

    def step(
        self, ops: Backend, weights: SwigluWeights, saved: SwigluActivations, out: Array
    ) -> None:
        product = ops.geglu if self.form.gelu else ops.swiglu
        product(*saved.gate_up.parts, saved.hidden)
        ops.linear(saved.hidden, weights.down, out)
        if saved.post_norm:
            saved.post_norm.forward(ops, out, weights.post_norm)
