"""The ops of a decoded token: a layer, the logits and the choice for one new token a row. An engine with arrays and `launch` takes them in.

Up to `most_rows` rows go through kernels made for them (decode_layer.cu), five a layer. More rows are worth a matrix product: cuBLASLt's, with
what lies between them fused as far as it is cheap.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.backend.cuda.sources import (
    DecodingSizes,
    Sources,
    choosing_bytes,
    choosing_threads,
    most_rows,
    parts_of,
)

Array = Any
MOST_WARPS = 8  # of a block of few_rows.cuh
LEAST_SPAN = 32  # keys that are worth a block


@dataclass
class LayerStep:
    """A layer's work on one new token a row: B rows, caches of S places."""

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
    """Ops beyond the reference's table, for one new token a row; `lengths_B` are the places of the new tokens in the cache."""

    sources: Sources
    activation: np.dtype

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
        """x ← a whole layer's output for one new token per row, whose key and value go to place lengths[b] of the cache; a full cache keeps what it has."""
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

    def few_rows_step(self, step: "LayerStep") -> None:
        s, w, x, lengths, B, S = (
            step.sizes,
            step.weights,
            step.x_BD,
            step.lengths_B,
            step.rows,
            step.capacity,
        )
        source, most_parts = self.sources.decode_layer(s, bucket(B)), parts_of(bucket(B))
        span = -(-S // most_parts // LEAST_SPAN) * LEAST_SPAN
        splits = -(-S // span)
        query = self.scratch(f"query {B} {s.width}", B * s.width, self.activation)
        hidden = self.scratch(f"hidden {B} {s.ffn}", B * s.ffn, self.activation)
        parts = self.scratch(f"parts {B} {s.width}", B * most_parts * s.width, np.float32)
        shares = self.scratch(f"shares {B} {s.width}", B * most_parts * 2 * s.heads, np.float32)
        pairs = (s.heads + 2 * s.kv_heads) * s.head_size // 2
        arrays = (
            x,
            w.attention_norm,
            step.epsilon,
            w.query_key_value,
            lengths,
            *step.table,
            query,
            step.keys_BSGE,
            step.values_BSGE,
        )
        self.launch_warps(source, "project", pairs, *arrays, B, S, step.cache_stride)
        self.attend(step, query, span, splits, None, parts, shares)
        self.launch_warps(
            source,
            "output",
            s.dim,
            parts,
            shares,
            lengths,
            span,
            splits,
            w.attention_output,
            step.step_size,
            x,
            B,
        )
        self.launch_warps(
            source,
            "gate_up",
            s.ffn // self.pairs(B),
            x,
            w.mlp_norm,
            step.epsilon,
            w.gate_up,
            hidden,
            B,
        )
        self.launch_warps(source, "down", s.dim, hidden, w.down, step.step_size, x, B)

    def many_rows_step(self, step: "LayerStep") -> None:
        s, w, x, columns, B = step.sizes, step.weights, step.x_BD, step.columns, step.rows

        def room(name: str, wide: int) -> Array:
            return self.scratch(f"{name} {B} {wide}", B * wide, self.activation).reshape(B, wide)

        normed, packed, query, attended = (
            room("normed", s.dim),
            room("packed", columns.query_key_value),
            room("query", s.width),
            room("attended", s.width),
        )
        gate_up, hidden, inverse_rms = (
            room("gate_up", columns.gate_up),
            room("hidden", s.ffn),
            self.scratch(f"inverse rms {B}", B, np.float32),
        )
        self.rms_norm(x, w.attention_norm, step.epsilon, normed, inverse_rms)
        self.linear(normed, w.query_key_value, packed)
        threads = B * (s.heads + 2 * s.kv_heads) * s.head_size // 16
        arrays = (
            packed,
            np.int64(packed.shape[1]),
            step.lengths_B,
            *step.table,
            query,
            step.keys_BSGE,
            step.values_BSGE,
            step.cache_stride,
        )
        self.launch(
            self.sources.decode_attention(s),
            "place",
            -(-threads // 256),
            256,
            *arrays,
            step.capacity,
            B,
        )
        self.attend(step, query, step.capacity, 1, attended, None, None)
        self.add_linear(attended, w.attention_output, step.step_size, x)
        self.rms_norm(x, w.mlp_norm, step.epsilon, normed, inverse_rms)
        self.linear(normed, w.gate_up, gate_up)
        self.swiglu(gate_up[:, columns.gate], gate_up[:, columns.up], hidden)
        self.add_linear(hidden, w.down, step.step_size, x)

    def attend(
        self,
        step: "LayerStep",
        query: Array,
        span: int,
        splits: int,
        out: Array | None,
        parts: Array | None,
        shares: Array | None,
    ) -> None:
        """Attention of the new tokens, the keys of a row in `splits` parts of `span`: to `out`, or its parts and their shares."""
        s = step.sizes
        grid = splits, s.heads // s.heads_together, step.rows
        arrays = (
            query,
            step.keys_BSGE,
            step.values_BSGE,
            step.cache_stride,
            step.lengths_B,
            step.capacity,
            span,
            s.head_size**-0.5,
            out,
            parts,
            shares,
        )
        self.launch(self.sources.decode_attention(s), "attend", grid, 256, *arrays, early=True)

    def next_logits(
        self, x_BD: Array, norm_D: Array, epsilon: float, weight_VD: Array, out_BV: Array
    ) -> None:
        """Logits in float32 behind the last layer: the final norm and the product with a head."""
        (B, D), V = x_BD.shape, len(weight_VD)
        if (
            B * D * self.activation.itemsize <= 48 * 1024
            and B <= 8
            and 2 * D * self.activation.itemsize <= 64 * 4 * 32
        ):
            arrays = x_BD, norm_D, float(epsilon), weight_VD, out_BV
            self.launch_warps(
                self.sources.decode_head(D, bucket(B)),
                "head",
                V // (2 * self.pairs(B)),
                *arrays,
                V,
                B,
            )
            return
        normed = self.scratch(f"normed {B} {D}", B * D, self.activation).reshape(B, D)
        self.rms_norm(
            x_BD, norm_D, epsilon, normed, self.scratch(f"inverse rms {B}", B, np.float32)
        )
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
        """The next token of each row, see sampling.cu."""
        V = len(allowed_V)
        arrays = (
            logits_BV,
            np.int64(logits_BV.shape[1]),
            allowed_V,
            settings,
            draws_B,
            chosen_B,
            tokens_B,
            lengths_B,
        )
        self.launch(
            self.sources.sampling(V),
            "choose",
            len(logits_BV),
            choosing_threads(V),
            *arrays,
            shared=choosing_bytes(V),
            early=True,
        )

    def pairs(self, rows: int) -> int:
        """PAIRS of few_rows.cuh."""
        return 2 if rows > 1 and self.activation.itemsize == 2 else 1

    def launch_warps(self, source: Any, kernel: str, warps: int, *arguments: Any) -> None:
        # always whole blocks: fewer warps in each would spread over more multiprocessors, but took 0.210 ms a token instead of 0.198
        self.launch(
            source, kernel, -(-warps // MOST_WARPS), 32 * MOST_WARPS, *arguments, early=True
        )


def bucket(rows: int) -> int:
    """The number of rows that a kernel for `rows` of them is compiled for."""
    return 1 << (rows - 1).bit_length()


def sizes_of(weights: Any, columns: Any, keys_BSGE: Array) -> DecodingSizes:
    """The sizes of a layer, from its weights and its cache."""
    (D, width), (G, E) = weights.attention_output.shape, keys_BSGE.shape[2:]
    return DecodingSizes(
        D,
        weights.down.shape[1],
        width // E,
        G,
        E,
        columns.key.start,
        columns.value.start,
        columns.up.start,
    )
