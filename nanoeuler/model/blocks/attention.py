"""The attention block: x ← x + h · attention(norm(x)).

Causal grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021). q, k
and v come from one packed product, whose columns are theirs one after another.
"""

import math
from dataclasses import dataclass

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import (
    Array,
    AttentionArrays,
    AttentionForm,
    AttentionWeights,
    EulerStep,
    HeadNorm,
)
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.blocks.block import Block, BlockPass, Rows
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, packed_rows


@dataclass
class AttentionActivations:
    """Saved for the backward pass; the gradients are scratch that all layers share."""

    query_key_value: Array  # (N, columns), q and k rotated
    out: Array  # (N, H·E)
    lse: Array  # (B, H, T)
    heads: AttentionArrays  # views of the first two
    norms: list[HeadNorm]  # of q and of k, weights left out; empty without qk_norm
    rotated: list[Array]  # views (N, heads, E) of what rotary positions rotate

    dquery_key_value: Array  # (N, columns)
    dout: Array  # (N, H·E)
    dheads: AttentionArrays  # views of these two


class Attention(Block[AttentionWeights, AttentionActivations]):
    """The attention block of one layer."""

    form: AttentionForm

    def __init__(self, config: ModelConfig, layer: int):
        c = config
        self.config, self.layer = config, layer
        self.query_size, self.key_size = c.heads * c.head_size, c.kv_heads * c.head_size
        key = self.product_rows(self.query_size)
        value = key + self.product_rows(self.key_size)
        self.form = AttentionForm(
            c.step_size,
            c.norm_epsilon,
            c.heads,
            c.kv_heads,
            c.head_size,
            columns=value + self.product_rows(self.key_size),
            query=slice(0, self.query_size),
            key=slice(key, key + self.key_size),
            value=slice(value, value + self.key_size),
            qk_norm=c.qk_norm,
        )
        self.cache_shape = c.kv_heads, c.head_size

    def product_rows(self, size: int) -> int:
        """Rows of q, k or v in the packed product."""
        return packed_rows(size, self.config.dim)

    def tensors(self) -> list[TensorSpec]:
        dim, prefix = self.config.dim, f"model.layers.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * self.config.layers)
        tensors = [
            TensorSpec(f"{prefix}.input_layernorm.weight", (dim,), None),
            TensorSpec(f"{prefix}.self_attn.q_proj.weight", (self.query_size, dim), packed=True),
            TensorSpec(f"{prefix}.self_attn.k_proj.weight", (self.key_size, dim), packed=True),
            TensorSpec(f"{prefix}.self_attn.v_proj.weight", (self.key_size, dim), packed=True),
            TensorSpec(f"{prefix}.self_attn.o_proj.weight", (dim, self.query_size), residual_std),
        ]
        if self.form.qk_norm == "weighted":  # names and shapes of Qwen3
            for part in "qk":
                name = f"{prefix}.self_attn.{part}_norm.weight"
                tensors.append(TensorSpec(name, (self.form.head_size,), None))
        return tensors

    def flops(self) -> tuple[int, int]:
        """With scores and the mix of values, 2 · E of each head for each key."""
        return super().flops()[0], 4 * self.form.heads * self.form.head_size

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> AttentionWeights:
        norm, query, key, value, output, *qk_norms = (tensor.name for tensor in self.tensors())
        return AttentionWeights(
            norms[norm],
            buffer.packed(query, key, value),
            buffer[output],
            *(norms[name] for name in qk_norms),
        )

    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: AttentionActivations | None,
    ) -> AttentionActivations:
        N, f = rows * length, self.form
        backward_N = N if training else 0
        packed = arena.empty((N, f.columns), ops.activation)
        out = arena.empty((N, self.query_size), ops.activation)
        lse = arena.empty((rows, f.heads, length), ops.dtype)
        # ops never write the padding between q, k and v: it is zero from the beginning
        if first:
            dpacked, dout = first.dquery_key_value, first.dout
        else:
            dpacked = arena.empty((backward_N, f.columns), ops.activation)
            dout = arena.empty((backward_N, self.query_size), ops.activation)
        return AttentionActivations(
            query_key_value=packed,
            out=out,
            lse=lse,
            heads=self.by_head(packed, out, rows),
            norms=self.head_norms(arena, ops, N, backward_N, first),
            rotated=self.rotated(packed),
            dquery_key_value=dpacked,
            dout=dout,
            dheads=first.dheads if first else self.by_head(dpacked, dout, rows),
        )

    def by_head(self, packed: Array, out: Array, rows: int) -> AttentionArrays:
        """Views (B, T, heads, E) of a packed product and of attention's output."""
        f = self.form
        length = len(packed) // rows
        query, key, value, out = (
            part.reshape(rows, length, -1, f.head_size) if length else part
            for part in (packed[:, f.query], packed[:, f.key], packed[:, f.value], out)
        )
        return AttentionArrays(query, key, value, out, f.cap)

    def head_norms(
        self,
        arena: Arena,
        ops: Backend,
        N: int,
        backward_N: int,
        first: AttentionActivations | None,
    ) -> list[HeadNorm]:
        """The arrays of the norms of q and k; scratch is shared."""
        f, norms = self.form, []
        for index, heads in enumerate((f.heads, f.kv_heads) if f.qk_norm != "none" else ()):
            shape = heads, f.head_size
            if first:
                scratch = first.norms[index][-2:]
            else:
                scratch = (
                    arena.empty((N, *shape), ops.activation),
                    arena.empty((backward_N, *shape), ops.activation),
                )
            raw = arena.empty((N, *shape), ops.residual)
            inverse_rms = arena.empty((N, heads), ops.dtype)
            norms.append(HeadNorm(None, f.epsilon, raw, inverse_rms, *scratch))
        return norms

    def rotated(self, packed: Array) -> list[Array]:
        """q and k as one view (N, heads, E), or as two where padding lies between them."""
        query, key = self.form.query, self.form.key
        parts = [slice(0, key.stop)] if query.stop == key.start else [query, key]
        views = [packed[:, part] for part in parts]
        return [view.reshape(len(view), -1, self.form.head_size) for view in views]

    def forward(
        self, ops: Backend, weights: AttentionWeights, saved: AttentionActivations, p: BlockPass
    ) -> None:
        w, a, heads, offset_B = weights, saved, saved.heads, p.rows.offset_B
        self.project(ops, w, a, p.norm.out_ND, p.rows)
        if p.slots is not None:
            # rows with fewer new tokens write past their end; those slots are overwritten later
            key = ops.write_cache(p.slots.keys_BSGE, heads.key, offset_B)
            value = ops.write_cache(p.slots.values_BSGE, heads.value, offset_B)
            heads = heads._replace(key=key, value=value)
        ops.attention(heads, p.rows.starts_BT, offset_B, a.lse)
        self.last_step(ops, w, a, p)

    def last_step(
        self, ops: Backend, w: AttentionWeights, a: AttentionActivations, p: BlockPass
    ) -> None:
        ops.euler_step(a.out, w.output, self.euler_step(w, p))

    def euler_step(self, w: AttentionWeights, p: BlockPass) -> EulerStep:
        """The block's last step: no layer has a bias."""
        return EulerStep(p.norm.x_ND, p.stream.delta, self.form.step_size, p.following)

    def project(
        self, ops: Backend, w: AttentionWeights, a: AttentionActivations, normed: Array, rows: Rows
    ) -> None:
        """From the normed input to q, k and v, q and k normed by head and rotated."""
        packed = a.query_key_value
        if not a.norms:
            ops.linear_rope(normed, w.query_key_value, packed, a.rotated, rows.rotation)
            return
        ops.linear(normed, w.query_key_value, packed)
        for x_NHE, head_norm in self.normed_heads(w, a, packed):
            ops.head_norm(x_NHE, head_norm)
        for part in a.rotated:
            ops.rope(part, *rows.rotation)

    def normed_heads(
        self, w: AttentionWeights, a: AttentionActivations, packed: Array
    ) -> list[tuple[Array, HeadNorm]]:
        """q and k as views (N, heads, E) of a packed product, each with its norm."""
        views = [packed[:, part] for part in (self.form.query, self.form.key)]
        return [
            (x.reshape(len(x), -1, self.form.head_size), norm._replace(weight_E=weight))
            for x, norm, weight in zip(views, a.norms, (w.query_norm, w.key_norm), strict=False)
        ]

    def backward(
        self,
        ops: Backend,
        weights: AttentionWeights,
        gradients: AttentionWeights,
        saved: AttentionActivations,
        p: BlockPass,
    ) -> None:
        w, a, h, dx = weights, saved, self.form.step_size, p.stream.dx
        rows, accumulate = p.rows, p.accumulate
        # dx flows past the block unchanged, and into it scaled by h
        ops.linear_backward_weight(dx, a.out, gradients.output, accumulate=accumulate, scale=h)
        ops.linear_backward_input(dx, w.output, a.dout, scale=h)
        ops.attention_backward(a.heads, a.dheads, rows.starts_BT, a.lse, rows.rotation)
        dweights = gradients.query_norm, gradients.key_norm
        dheads = self.normed_heads(w, a, a.dquery_key_value)
        for (dx_NHE, head_norm), dweight in zip(dheads, dweights, strict=False):
            ops.head_norm_backward(dx_NHE, head_norm, dweight, accumulate=accumulate)
        arrays = w.query_key_value, gradients.query_key_value, gradients.norm
        self.backward_input(ops, a.dquery_key_value, *arrays, p)

    def step(
        self, ops: Backend, weights: AttentionWeights, saved: AttentionActivations, out: Array
    ) -> None:
        ops.linear(saved.out, weights.output, out)
