"""The two blocks of a layer in the forms that released models vary them in.

Attention with biases of q, k and v (Qwen2), with a sliding window (Mistral), without rotary
positions (SmolLM3), with soft caps (Gemma 2); GEGLU; and a norm behind each block,
x ← x + norm(f(norm(x))) (Gemma 2 and 3).
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import (
    Array,
    AttentionWeights,
    EulerStep,
    HeadNorm,
    RmsNorm,
    SwigluWeights,
)
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.attention import Attention, AttentionActivations
from nanoeuler.model.blocks.block import BlockPass, Rows
from nanoeuler.model.blocks.swiglu import Swiglu, SwigluActivations
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.tensors import ALIGNMENT, NamedArrays, NamedViews, TensorSpec


@dataclass
class PostNorm:
    """Arrays of the norm behind one block, which is that of one head as wide as the stream; its
    weight comes with each call. Blocks of a kind share scratch."""

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
        self, ops: Backend, inner_NI: Array, weight_DI: Array, w: Any, step: EulerStep
    ) -> None:
        """`Backend.euler_step` with the norm behind the product."""
        x, delta, step_size, following, _ = step
        assert isinstance(following, RmsNorm), "a GPT-2 has no norms behind its blocks"
        ops.linear(inner_NI, weight_DI, delta)
        self.forward(ops, delta, w.post_norm)
        ops.add_rms_norm(x, delta, step_size, following)

    def backward(self, ops: Backend, w: Any, dw: Any, p: BlockPass) -> Array:
        """The gradient of the product, from that of the stream, which stays as it is."""
        bits = f"u{self.gradient_ND.itemsize}"  # as whole numbers: CuPy does not know bfloat16
        self.gradient_ND.view(bits)[...] = p.stream.dx.view(bits)
        norm, gradient = self.norm._replace(weight_E=w.post_norm), self.gradient_ND[:, None]
        ops.head_norm_backward(gradient, norm, dw.post_norm, accumulate=p.accumulate)
        return self.gradient_ND


@dataclass
class VariedActivations(AttentionActivations):
    """With what the variants need beside it."""

    starts_BT: Array  # the first slot in a token's window
    post_norm: PostNorm | None


class VariedAttention(Attention):
    """The attention block of one layer."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        window, rotates = config.layer_kind(layer)
        self.form = replace(
            self.form,
            qkv_bias=config.qkv_bias,
            window=window,
            rotates=rotates,
            post_norm=config.post_norms,
            cap=float(config.attention_cap or 0),
        )

    def product_rows(self, size: int) -> int:
        """With biases q, k and v are padded to whole blocks, so that those are neighbours, too."""
        return round_up(size, ALIGNMENT) if self.config.qkv_bias else super().product_rows(size)

    def tensors(self) -> list[TensorSpec]:
        dim, part = self.config.dim, f"model.layers.{self.layer}.self_attn"
        tensors = [
            replace(spec, storage_shape=(self.product_rows(spec.shape[0]), dim))
            if spec.packed
            else spec
            for spec in super().tensors()
        ]
        sizes = {"q": self.query_size, "k": self.key_size, "v": self.key_size}
        for name, size in sizes.items() if self.form.qkv_bias else ():
            storage = (self.product_rows(size),)
            bias = TensorSpec(f"{part}.{name}_proj.bias", (size,), 0.0, storage, packed=True)
            tensors.append(bias)
        if self.form.post_norm:
            name = f"model.layers.{self.layer}.post_attention_layernorm.weight"
            tensors.append(TensorSpec(name, (dim,), None))
        return tensors

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> AttentionWeights:
        norm, query, key, value, output, *more = (tensor.name for tensor in self.tensors())
        biases = [name for name in more if name.endswith(".bias")]
        found = {name.split(".")[-2]: norms[name] for name in more if name not in biases}
        return AttentionWeights(
            norms[norm],
            buffer.packed(query, key, value),
            buffer[output],
            found.get("q_norm"),
            found.get("k_norm"),
            buffer.packed(*biases) if biases else None,
            post_norm=found.get("post_attention_layernorm"),
        )

    def activations(
        self, arena: Arena, ops: Backend, rows: int, length: int, *, training: bool, first: Any
    ) -> VariedActivations:
        own = super().activations(arena, ops, rows, length, training=training, first=first)
        N, shape = rows * length, (rows, length)
        starts = first.starts_BT if first else arena.empty(shape, np.dtype(np.int32))
        sizes, post_norm = (N, N if training else 0), first.post_norm if first else None
        behind = PostNorm.of(arena, ops, self.config, *sizes, post_norm)
        return VariedActivations(**vars(own), starts_BT=starts, post_norm=behind)

    def windowed(self, ops: Backend, saved: VariedActivations, p: BlockPass) -> BlockPass:
        """The pass as a layer with a window sees it: a document starts no earlier."""
        rows, starts, window = p.rows, saved.starts_BT, self.form.window
        if not window:
            return p
        assert rows.window_table is not None, "the model sets it"
        last = (p.slots.keys_BSGE if p.slots else starts).shape[1] - 1
        ops.window_starts(rows.starts_BT, rows.offset_B, window, last, starts)
        return p._replace(rows=replace(rows, starts_BT=starts, rope_table=rows.window_table))

    def forward(self, ops: Backend, weights: AttentionWeights, saved: Any, p: BlockPass) -> None:
        super().forward(ops, weights, saved, self.windowed(ops, saved, p))

    def project(
        self, ops: Backend, w: AttentionWeights, a: AttentionActivations, normed: Array, rows: Rows
    ) -> None:
        packed, bias = a.query_key_value, w.query_key_value_bias
        if bias is None:
            ops.linear(normed, w.query_key_value, packed)
        else:
            ops.linear_bias(normed, w.query_key_value, bias, packed)
        for x_NHE, head_norm in self.normed_heads(w, a, packed):
            ops.head_norm(x_NHE, head_norm)
        for part in a.rotated if self.form.rotates else ():
            ops.rope(part, *rows.rotation)

    def last_step(self, ops: Backend, w: AttentionWeights, a: Any, p: BlockPass) -> None:
        if a.post_norm is None:
            super().last_step(ops, w, a, p)
        else:
            a.post_norm.step(ops, a.out, w.output, w, self.euler_step(w, p))

    def backward(
        self, ops: Backend, weights: Any, gradients: Any, saved: Any, p: BlockPass
    ) -> None:
        w, dw, a, h = weights, gradients, saved, self.form.step_size
        rows, accumulate = self.windowed(ops, a, p).rows, p.accumulate
        dx = a.post_norm.backward(ops, w, dw, p) if a.post_norm else p.stream.dx
        ops.linear_backward_weight(dx, a.out, dw.output, accumulate=accumulate, scale=h)
        ops.linear_backward_input(dx, w.output, a.dout, scale=h)
        rotation = rows.rotation if self.form.rotates else None
        ops.attention_backward(a.heads, a.dheads, rows.starts_BT, a.lse, rotation)
        dheads = self.normed_heads(w, a, a.dquery_key_value)
        for (dx_NHE, head_norm), dweight in zip(dheads, (dw.query_norm, dw.key_norm), strict=False):
            ops.head_norm_backward(dx_NHE, head_norm, dweight, accumulate=accumulate)
        arrays = w.query_key_value, dw.query_key_value, dw.norm, p, dw.query_key_value_bias
        self.backward_input(ops, a.dquery_key_value, *arrays)

    def step(self, ops: Backend, weights: AttentionWeights, saved: Any, out: Array) -> None:
        super().step(ops, weights, saved, out)
        if saved.post_norm:
            saved.post_norm.forward(ops, out, weights.post_norm)


@dataclass
class VariedMlpActivations(SwigluActivations):
    """With those of the norm behind it."""

    post_norm: PostNorm | None


class VariedMlp(Swiglu):
    """The MLP block of one layer, with SwiGLU or GEGLU."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        gelu = config.activation == "geglu"
        self.form = replace(self.form, gelu=gelu, post_norm=config.post_norms)
        self.recomputable = not config.post_norms  # which keep the product

    def tensors(self) -> list[TensorSpec]:
        norm, *matrices = super().tensors()
        if not self.form.post_norm:
            return [norm, *matrices]
        # the names in Gemma, where Llama's stands behind attention
        before, behind = (
            replace(norm, name=f"model.layers.{self.layer}.{place}_feedforward_layernorm.weight")
            for place in ("pre", "post")
        )
        return [before, *matrices, behind]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> SwigluWeights:
        norm, gate, up, down, *behind = (tensor.name for tensor in self.tensors())
        matrices = buffer.packed(gate, up), buffer.storage(down)
        return SwigluWeights(norms[norm], *matrices, *(norms[name] for name in behind))

    def activations(
        self, arena: Arena, ops: Backend, rows: int, length: int, *, training: bool, first: Any
    ) -> VariedMlpActivations:
        own = super().activations(arena, ops, rows, length, training=training, first=first)
        N, post_norm = rows * length, first.post_norm if first else None
        behind = PostNorm.of(arena, ops, self.config, N, N if training else 0, post_norm)
        return VariedMlpActivations(**vars(own), post_norm=behind)

    def inner(self, ops: Backend, weights: SwigluWeights, saved: Any, normed: Array) -> None:
        if self.form.gelu:
            ops.linear(normed, weights.gate_up, saved.gate_up.packed_NO)
            gate, up = saved.gate_up.parts
            ops.geglu(gate, up, saved.hidden)
        else:
            super().inner(ops, weights, saved, normed)

    def forward(self, ops: Backend, weights: SwigluWeights, saved: Any, p: BlockPass) -> None:
        if saved.post_norm is None:
            super().forward(ops, weights, saved, p)
            return
        self.inner(ops, weights, saved, p.norm.out_ND)
        step = EulerStep(p.norm.x_ND, p.stream.delta, self.form.step_size, p.following)
        saved.post_norm.step(ops, saved.hidden, weights.down, weights, step)

    def backward(
        self, ops: Backend, weights: Any, gradients: Any, saved: Any, p: BlockPass
    ) -> None:
        w, dw, a, h = weights, gradients, saved, self.form.step_size
        dx = a.post_norm.backward(ops, w, dw, p) if a.post_norm else p.stream.dx
        if self.form.gelu:
            ops.linear_backward_input(dx, w.down, a.hidden, h)
            ops.geglu_backward(a.hidden, *a.gate_up.parts, *a.gate_up.parts)
        else:
            ops.linear_swiglu_backward(dx, w.down, h, a.gate_up, a.hidden)
        dgate_up = a.gate_up.packed_NO  # the op has put the gradients in their place
        ops.linear_backward_weight(dx, a.hidden, dw.down, accumulate=p.accumulate, scale=h)
        self.backward_input(ops, dgate_up, w.gate_up, dw.gate_up, dw.norm, p)

    def step(self, ops: Backend, weights: SwigluWeights, saved: Any, out: Array) -> None:
        if self.form.gelu:
            gate, up = saved.gate_up.parts
            ops.geglu(gate, up, saved.hidden)
            ops.linear(saved.hidden, weights.down, out)
        else:
            super().step(ops, weights, saved, out)
        if saved.post_norm:
            saved.post_norm.forward(ops, out, weights.post_norm)
