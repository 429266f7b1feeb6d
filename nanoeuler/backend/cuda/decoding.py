"""The ops of a decoded token: a layer, the logits and the choice for one new token a row. An engine with arrays and `launch` takes them in.

Up to `most_rows` rows go through kernels made for them (decode_layer.cu), five a layer. More rows are worth a matrix product: cuBLASLt's, with
what lies between them fused as far as it is cheap.
"""

from typing import Any

import numpy as np

from nanoeuler.backend.cuda.sources import DecodingSizes, Sources, choosing_bytes, choosing_threads, most_rows, parts_of

Array = Any
MOST_WARPS = 8  # of a block of few_rows.cuh
LEAST_SPAN = 32  # keys that are worth a block


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
            self.layer_step(x_BD, lengths_B, weights, columns, table, keys_BSGE, values_BSGE, epsilon, step_size)

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
        step = self.few_rows_step if len(x_BD) <= self.most_rows(sizes) else self.many_rows_step
        step(sizes, x_BD, lengths_B, weights, columns, table, keys_BSGE, values_BSGE, float(epsilon), float(step_size))

    def most_rows(self, sizes: DecodingSizes) -> int:
        return most_rows(sizes, self.activation.itemsize)

    def few_rows_step(
        self,
        sizes: DecodingSizes,
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
        B, S = keys_BSGE.shape[:2]
        s, w, width = sizes, weights, sizes.heads * sizes.head_size
        source = self.sources.decode_layer(s, bucket(B))
        most_parts = parts_of(bucket(B))
        span = -(-S // most_parts // LEAST_SPAN) * LEAST_SPAN
        splits = -(-S // span)
        query = self.scratch(f"query {B} {width}", B * width, self.activation)
        hidden = self.scratch(f"hidden {B} {s.ffn}", B * s.ffn, self.activation)
        parts, shares = (self.scratch(f"{name} {B} {width}", B * most_parts * count, np.float32) for name, count in (("parts", width), ("shares", 2 * s.heads)))
        pairs = (s.heads + 2 * s.kv_heads) * s.head_size // 2
        arrays = x_BD, w.attention_norm, epsilon, w.query_key_value, lengths_B, *table, query, keys_BSGE, values_BSGE
        self.launch_warps(source, "project", pairs, B, *arrays, B, S, batch_stride(keys_BSGE))
        self.attend(sizes, query, keys_BSGE, values_BSGE, lengths_B, span, splits, None, parts, shares)
        self.launch_warps(source, "output", s.dim, B, parts, shares, lengths_B, span, splits, w.attention_output, step_size, x_BD, B)
        self.launch_warps(source, "gate_up", s.ffn // self.pairs(B), B, x_BD, w.mlp_norm, epsilon, w.gate_up, hidden, B)
        self.launch_warps(source, "down", s.dim, B, hidden, w.down, step_size, x_BD, B)

    def many_rows_step(
        self,
        sizes: DecodingSizes,
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
        (B, D), S, s, w = x_BD.shape, keys_BSGE.shape[1], sizes, weights
        width = s.heads * s.head_size

        def room(name: str, wide: int) -> Array:
            return self.scratch(f"{name} {B} {wide}", B * wide, self.activation).reshape(B, wide)

        normed, packed, query, attended = room("normed", D), room("packed", columns.query_key_value), room("query", width), room("attended", width)
        gate_up, hidden, inverse_rms = room("gate_up", columns.gate_up), room("hidden", s.ffn), self.scratch(f"inverse rms {B}", B, np.float32)
        self.rms_norm(x_BD, w.attention_norm, epsilon, normed, inverse_rms)
        self.linear(normed, w.query_key_value, packed)
        threads = B * (s.heads + 2 * s.kv_heads) * s.head_size // 16
        arrays = packed, np.int64(packed.shape[1]), lengths_B, *table, query, keys_BSGE, values_BSGE, batch_stride(keys_BSGE)
        self.launch(self.sources.decode_attention(s), "place", -(-threads // 256), 256, *arrays, S, B)
        self.attend(sizes, query, keys_BSGE, values_BSGE, lengths_B, S, 1, attended, None, None)
        self.add_linear(attended, w.attention_output, step_size, x_BD)
        self.rms_norm(x_BD, w.mlp_norm, epsilon, normed, inverse_rms)
        self.linear(normed, w.gate_up, gate_up)
        self.swiglu(gate_up[:, columns.gate], gate_up[:, columns.up], hidden)
        self.add_linear(hidden, w.down, step_size, x_BD)

    def attend(
        self,
        sizes: DecodingSizes,
        query: Array,
        keys_BSGE: Array,
        values_BSGE: Array,
        lengths_B: Array,
        span: int,
        splits: int,
        out: Array | None,
        parts: Array | None,
        shares: Array | None,
    ) -> None:
        B, S = keys_BSGE.shape[:2]
        grid = splits, sizes.heads // sizes.heads_together, B
        arrays = query, keys_BSGE, values_BSGE, batch_stride(keys_BSGE), lengths_B, S, span, sizes.head_size**-0.5, out, parts, shares
        self.launch(self.sources.decode_attention(sizes), "attend", grid, 256, *arrays, early=True)

    def next_logits(self, x_BD: Array, norm_D: Array, epsilon: float, weight_VD: Array, out_BV: Array) -> None:
        """Logits in float32 behind the last layer: the final norm and the product with a head."""
        (B, D), V = x_BD.shape, len(weight_VD)
        if B * D * self.activation.itemsize <= 48 * 1024 and B <= 8 and 2 * D * self.activation.itemsize <= 64 * 4 * 32:
            arrays = x_BD, norm_D, float(epsilon), weight_VD, out_BV
            self.launch_warps(self.sources.decode_head(D, bucket(B)), "head", V // (2 * self.pairs(B)), B, *arrays, V, B)
            return
        normed = self.scratch(f"normed {B} {D}", B * D, self.activation).reshape(B, D)
        self.rms_norm(x_BD, norm_D, epsilon, normed, self.scratch(f"inverse rms {B}", B, np.float32))
        self.linear(normed, weight_VD, out_BV)

    def choose(self, logits_BV: Array, allowed_V: Array, settings: Array, draws_B: Array, chosen_B: Array, tokens_B: Array, lengths_B: Array | None) -> None:
        """The next token of each row, see sampling.cu."""
        V = len(allowed_V)
        arrays = logits_BV, np.int64(logits_BV.shape[1]), allowed_V, settings, draws_B, chosen_B, tokens_B, lengths_B
        self.launch(self.sources.sampling(V), "choose", len(logits_BV), choosing_threads(V), *arrays, shared=choosing_bytes(V), early=True)

    def pairs(self, rows: int) -> int:
        """PAIRS of few_rows.cuh."""
        return 2 if rows > 1 and self.activation.itemsize == 2 else 1

    def launch_warps(self, source: Any, kernel: str, warps: int, rows: int, *arguments: Any) -> None:
        """As few warps to a block as spread them over all multiprocessors, but one for each of `rows`, which are shared among them first."""
        per_block = min(MOST_WARPS, max(rows, -(-warps // self.multiprocessors)))
        self.launch(source, kernel, -(-warps // per_block), 32 * per_block, *arguments, early=True)


def bucket(rows: int) -> int:
    """The number of rows that a kernel for `rows` of them is compiled for."""
    return 1 << (rows - 1).bit_length()


def batch_stride(cache_BSGE: Array) -> np.int64:
    return np.int64(cache_BSGE.strides[0] // cache_BSGE.itemsize)


def sizes_of(weights: Any, columns: Any, keys_BSGE: Array) -> DecodingSizes:
    """The sizes of a layer, from its weights and its cache."""
    (D, width), (G, E) = weights.attention_output.shape, keys_BSGE.shape[2:]
    return DecodingSizes(D, weights.down.shape[1], width // E, G, E, columns.key.start, columns.value.start, columns.up.start)
