"""The ops of a decoded token: a layer, the logits and the choice for one new token per row.

Up to `most_rows` rows go through kernels made for them (decode_layer.cu), five a layer. More rows
are worth a matrix product: cuBLASLt's, with what lies between the products fused as far as it is
cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.backend.cuda.kernel_sources import (
    ATTEND_THREADS,
    FEW_ROWS_WARPS,
    WARP,
    WIDTH,
    DecodingSizes,
    KernelSources,
    Source,
    choosing_bytes,
    choosing_threads,
    head_fits,
    most_rows,
    parts_of,
    row_pairs,
)
from nanoeuler.backend.cuda.kernels import Argument, blocks
from nanoeuler.backend.cuda.scratch import Scratch

if TYPE_CHECKING:
    from cupy import ndarray as Array

LEAST_SPAN = 32  # keys that are worth a block


@dataclass
class LayerStep:
    """A layer's work on one new token per row: B rows, caches of S slots."""

    sizes: DecodingSizes
    x_BD: Array
    lengths_B: Array
    weights: Any
    columns: Any
    table: tuple[Array, Array]
    keys_BSGE: Array
    values_BSGE: Array
    epsilon: float
    step_size: float

    @property
    def rows(self) -> int:
        return len(self.x_BD)

    @property
    def capacity(self) -> int:
        return self.keys_BSGE.shape[1]

    @property
    def cache_stride(self) -> np.int64:
        """Elements from a row of the cache to the next."""
        return np.int64(self.keys_BSGE.strides[0] // self.keys_BSGE.itemsize)


class DecodingOps:
    """Ops for one new token per row, to be mixed into an engine; `lengths_B` holds the slots of
    the new tokens in the cache."""

    sources: KernelSources
    scratch: Scratch
    activation: np.dtype
    launch: Callable[..., None]
    linear: Callable[..., None]
    add_linear: Callable[..., None]
    rms_norm: Callable[..., None]
    swiglu: Callable[..., None]

    def decode(
        self,
        x_BD: Array,
        lengths_B: Array,
        layers: Any,
        columns: Any,
        table: tuple[Array, Array],
        keys: list[Array],
        values: list[Array],
        epsilon: float,
        step_size: float,
    ) -> None:
        """x ← the output of all layers for one new token per row."""
        for weights, keys_BSGE, values_BSGE in zip(layers, keys, values, strict=True):
            self.layer_step(
                x_BD, lengths_B, weights, columns, table, keys_BSGE, values_BSGE, epsilon, step_size
            )

    def layer_step(
        self,
        x_BD: Array,
        lengths_B: Array,
        weights: Any,
        columns: Any,
        table: tuple[Array, Array],
        keys_BSGE: Array,
        values_BSGE: Array,
        epsilon: float,
        step_size: float,
    ) -> None:
        """x ← a whole layer's output for one new token per row.

        Its key and value go to slot lengths[b] of the cache; a full cache keeps what it has.
        """
        sizes = sizes_of(weights, columns, keys_BSGE)
        step = LayerStep(
            sizes,
            x_BD,
            lengths_B,
            weights,
            columns,
            table,
            keys_BSGE,
            values_BSGE,
            float(epsilon),
            float(step_size),
        )
        (self.few_rows_step if len(x_BD) <= self.most_rows(sizes) else self.many_rows_step)(step)

    def most_rows(self, sizes: DecodingSizes) -> int:
        return most_rows(sizes, self.activation.itemsize)

    def few_rows_step(self, step: LayerStep) -> None:
        s, w, x, lengths = step.sizes, step.weights, step.x_BD, step.lengths_B
        B, S = step.rows, step.capacity
        source = self.sources.decode_layer(s, bucket(B))
        span = blocks(blocks(S, parts_of(bucket(B))), LEAST_SPAN) * LEAST_SPAN
        splits = blocks(S, span)
        query, hidden, parts, shares = self.scratch.take(
            "decoding",
            ((B, s.width), self.activation),
            ((B, s.ffn), self.activation),
            ((B, s.heads, splits, s.head_size), np.float32),
            ((B, s.heads, splits, 2), np.float32),
        )
        pairs = (s.heads + 2 * s.kv_heads) * s.head_size // 2
        inputs = x, w.attention_norm, step.epsilon, w.query_key_value
        rotation = lengths, *step.table
        outputs = query, step.keys_BSGE, step.values_BSGE
        sizes = B, S, step.cache_stride
        self.launch_warps(source, "project", pairs, *inputs, *rotation, *outputs, *sizes)
        self.attend(step, query, span, splits, None, parts, shares)
        attended = parts, shares, lengths, span, splits
        output = w.attention_output, step.step_size, x
        self.launch_warps(source, "output", s.dim, *attended, *output, B)
        warps = s.ffn // row_pairs(B, self.activation.itemsize)
        inputs = x, w.mlp_norm, step.epsilon, w.gate_up
        self.launch_warps(source, "gate_up", warps, *inputs, hidden, B)
        self.launch_warps(source, "down", s.dim, hidden, w.down, step.step_size, x, B)

    def many_rows_step(self, step: LayerStep) -> None:
        s, w, x, columns, B = step.sizes, step.weights, step.x_BD, step.columns, step.rows
        widths = s.dim, columns.query_key_value, s.width, s.width, columns.gate_up, s.ffn
        activations = [((B, width), self.activation) for width in widths]
        normed, packed, query, attended, gate_up, hidden, inverse_rms = self.scratch.take(
            "decoding", *activations, ((B,), np.float32)
        )
        self.rms_norm(x, w.attention_norm, step.epsilon, normed, inverse_rms)
        self.linear(normed, w.query_key_value, packed)
        threads = B * (s.heads + 2 * s.kv_heads) * s.head_size // (2 * WIDTH)
        grid, source = blocks(threads, ATTEND_THREADS), self.sources.decode_attention(s)
        inputs = packed, np.int64(packed.shape[1]), step.lengths_B, *step.table
        outputs = query, step.keys_BSGE, step.values_BSGE
        sizes = step.cache_stride, step.capacity, B
        self.launch(source, "fill_slots", grid, ATTEND_THREADS, *inputs, *outputs, *sizes)
        self.attend(step, query, step.capacity, 1, attended, None, None)
        self.add_linear(attended, w.attention_output, step.step_size, x)
        self.rms_norm(x, w.mlp_norm, step.epsilon, normed, inverse_rms)
        self.linear(normed, w.gate_up, gate_up)
        self.swiglu(gate_up[:, columns.gate], gate_up[:, columns.up], hidden)
        self.add_linear(hidden, w.down, step.step_size, x)

    def attend(
        self,
        step: LayerStep,
        query: Array,
        span: int,
        splits: int,
        out: Array | None,
        parts: Array | None,
        shares: Array | None,
    ) -> None:
        """Attention of the new tokens, the keys of a row in `splits` parts of `span`: to `out`, or
        as parts and their shares."""
        s = step.sizes
        source = self.sources.decode_attention(s)
        grid = splits, s.heads // s.heads_together, step.rows
        inputs = query, step.keys_BSGE, step.values_BSGE, step.cache_stride, step.lengths_B
        sizes = step.capacity, span, s.head_size**-0.5
        outputs = out, parts, shares
        arguments = *inputs, *sizes, *outputs
        self.launch(source, "attend", grid, ATTEND_THREADS, *arguments, early=True)

    def next_logits(
        self, x_BD: Array, norm_D: Array, epsilon: float, weight_VD: Array, out_BV: Array
    ) -> None:
        """Logits in float32 of the last layer's output: the final norm and the product with a
        head."""
        (B, D), V = x_BD.shape, len(weight_VD)
        if head_fits(B, D, self.activation.itemsize):
            source = self.sources.decode_head(D, bucket(B))
            warps = V // (2 * row_pairs(B, self.activation.itemsize))
            arrays = x_BD, norm_D, float(epsilon), weight_VD, out_BV
            self.launch_warps(source, "head", warps, *arrays, V, B)
            return
        normed, inverse_rms = self.scratch.take(
            "decoding", ((B, D), self.activation), ((B,), np.float32)
        )
        self.rms_norm(x_BD, norm_D, epsilon, normed, inverse_rms)
        self.linear(normed, weight_VD, out_BV)

    def choose(
        self,
        logits_BV: Array,
        allowed_V: Array,
        settings: Array,
        draws_B: Array,
        chosen_B: Array,
        tokens_B: Array,
        lengths_B: Array | None,
    ) -> None:
        """Choose the next token of each row, see sampling.cu."""
        V, stride = len(allowed_V), np.int64(logits_BV.shape[1])
        source, threads, shared = self.sources.sampling(V), choosing_threads(V), choosing_bytes(V)
        inputs = logits_BV, stride, allowed_V, settings, draws_B
        arguments = *inputs, chosen_B, tokens_B, lengths_B
        rows = len(logits_BV)
        self.launch(source, "choose", rows, threads, *arguments, shared=shared, early=True)

    def launch_warps(self, source: Source, kernel: str, warps: int, *arguments: Argument) -> None:
        # Always whole blocks: smaller ones would spread over more multiprocessors, but they took
        # 0.210 ms a token instead of 0.198.
        grid, threads = blocks(warps, FEW_ROWS_WARPS), FEW_ROWS_WARPS * WARP
        self.launch(source, kernel, grid, threads, *arguments, early=True)


def bucket(rows: int) -> int:
    """The number of rows that a kernel for `rows` of them is compiled for."""
    return 1 << (rows - 1).bit_length()


def sizes_of(weights: Any, columns: Any, keys_BSGE: Array) -> DecodingSizes:
    """The sizes of a layer, from its weights and its cache."""
    (D, width), (G, E) = weights.attention_output.shape, keys_BSGE.shape[2:]
    starts = columns.key.start, columns.value.start, columns.up.start
    return DecodingSizes(D, weights.down.shape[1], width // E, G, E, *starts)
