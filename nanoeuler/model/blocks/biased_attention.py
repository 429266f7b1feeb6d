"""GPT-2's attention block: x ← x + h · attention(norm(x)), with LayerNorm, biases and no rotation.

q, k and v come from one product, whose columns are theirs one after another.
"""

import math

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, AttentionWeights, BiasedAttentionForm, EulerStep
from nanoeuler.model.blocks.attention import Attention, AttentionActivations
from nanoeuler.model.blocks.block import BlockPass, Rows
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec, norm_tensors


class BiasedAttention(Attention):
    """The attention block of one layer."""

    def __init__(self, config: ModelConfig, layer: int):
        c = config
        self.config, self.layer = config, layer
        self.query_size = self.key_size = c.dim
        self.form = BiasedAttentionForm(
            c.step_size,
            c.norm_epsilon,
            c.heads,
            c.kv_heads,
            c.head_size,
            columns=3 * c.dim,
            query=slice(0, c.dim),
            key=slice(c.dim, 2 * c.dim),
            value=slice(2 * c.dim, 3 * c.dim),
        )
        self.cache_shape = c.heads, c.head_size

    def tensors(self) -> list[TensorSpec]:
        dim, prefix = self.config.dim, f"transformer.h.{self.layer}"
        residual_std = 0.02 / math.sqrt(2 * self.config.layers)
        packed, output = f"{prefix}.attn.c_attn", f"{prefix}.attn.c_proj"
        return [
            *norm_tensors(self.config, f"{prefix}.ln_1.weight", f"{prefix}.ln_1.bias"),
            TensorSpec(f"{packed}.weight", (3 * dim, dim), transposed=True, matrices=3),
            TensorSpec(f"{packed}.bias", (3 * dim,), 0.0),
            TensorSpec(f"{output}.weight", (dim, dim), residual_std, transposed=True),
            TensorSpec(f"{output}.bias", (dim,), 0.0),
        ]

    def weights(self, buffer: NamedViews, norms: NamedArrays) -> AttentionWeights:
        norm, norm_bias, *products = (tensor.name for tensor in self.tensors())
        packed, packed_bias, output, output_bias = (buffer[name] for name in products)
        return AttentionWeights(
            norms[norm],
            packed,
            output,
            norm_bias=norms[norm_bias],
            query_key_value_bias=packed_bias,
            output_bias=output_bias,
        )

    def rotated(self, packed: Array) -> list[Array]:
        return []

    def project(
        self, ops: Backend, w: AttentionWeights, a: AttentionActivations, normed: Array, rows: Rows
    ) -> None:
        ops.linear_bias(normed, w.query_key_value, w.query_key_value_bias, a.query_key_value)

    def euler_step(self, w: AttentionWeights, p: BlockPass) -> EulerStep:
        return super().euler_step(w, p)._replace(bias_D=w.output_bias)

    def backward(
        self,
        ops: Backend,
        weights: AttentionWeights,
        gradients: AttentionWeights,
        saved: AttentionActivations,
        p: BlockPass,
    ) -> None:
        w, dw, a, dx = weights, gradients, saved, p.stream.dx
        # dx flows past the block unchanged, and into it scaled by h
        arrays, h = (dx, a.out, dw.output, dw.output_bias), self.form.step_size
        ops.linear_bias_backward(*arrays, accumulate=p.accumulate, scale=h)
        ops.linear_backward_input(dx, w.output, a.dout, scale=h)
        ops.attention_backward(a.heads, a.dheads, p.rows.starts_BT, a.lse)
        inputs = w.query_key_value, dw.query_key_value, dw.norm, p
        biases = dw.query_key_value_bias, dw.norm_bias
        self.backward_input(ops, a.dquery_key_value, *inputs, *biases)

    def step(
        self, ops: Backend, weights: AttentionWeights, saved: AttentionActivations, out: Array
    ) -> None:
        ops.linear_bias(saved.out, weights.output, weights.output_bias, out)
