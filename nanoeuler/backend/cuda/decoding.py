"""The ops of new tokens that are decoded: the layers, and the logits behind them. A row is a token.

Few rows go through kernels that read a weight as fast as memory gives it (decode_layer.cu), five a
layer. Up to 64 rows go through five that multiply on matrix units (many_rows_layer.cu), on a chip
with clusters and in bf16. Others take cuBLASLt's products, with what lies between them fused as far
as it is cheap.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.cuda.decoding_sizes import (
    ATTEND_THREADS,
    FEW_ROWS,
    FEW_ROWS_WARPS,
    FUSED_TOKENS,
    MANY_ROWS_WARPS,
    MOST_MANY_ROWS,
    MOSTLY_CACHE,
    PROMPT_BOX,
    DecodingSizes,
    ManyRowsProduct,
    head_fits,
    many_rows_attention,
    many_rows_fit,
    many_rows_head,
    many_rows_products,
    most_rows,
    parts_of,
    row_pairs,
)
from nanoeuler.backend.cuda.kernel_sources import WIDTH
from nanoeuler.backend.cuda.kernels import WARP, Argument, Source, blocks
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.cuda.prompts import most_tokens
from nanoeuler.backend.records import (
    Array,
    AttentionForm,
    AttentionWeights,
    BlockForm,
    CacheSlots,
    DecodeStep,
    GateUp,
    GeluForm,
    GeluWeights,
    LayerNorm,
    Norm,
    RmsNorm,
    RopeTable,
    SwigluForm,
    SwigluWeights,
)

LEAST_SPAN = 128
"""Keys that are worth a block. In caches with room for no more than that in each part, a row's keys
are divided alike, and so its bits are the same."""

HEAD_BLOCKS = 2  # of a multiprocessor, each of which takes a share of the vocabulary


@dataclass
class LayerStep:
    """A layer's work on B rows, each a new token, and caches of S slots."""

    sizes: DecodingSizes
    attention: AttentionForm
    mlp: SwigluForm | GeluForm
    a: AttentionWeights
    m: SwigluWeights | GeluWeights
    slots: CacheSlots
    table: RopeTable
    x_BD: Array
    lengths: Array  # of the sequences
    query: Array | None = None
    """Queries computed before, of rows whose keys and values are in the cache."""

    @property
    def rows(self) -> int:
        return len(self.x_BD)

    @property
    def tokens(self) -> int:
        """Rows after one another that belong to one sequence."""
        return len(self.x_BD) // len(self.lengths)

    @property
    def capacity(self) -> int:
        return self.slots.keys_BSGE.shape[1]

    @property
    def cache_stride(self) -> np.int64:
        """Elements from a row of the cache to the next."""
        keys_BSGE = self.slots.keys_BSGE
        return np.int64(keys_BSGE.strides[0] // keys_BSGE.itemsize)


class DecodingOps(CudaParts, FusingBackend):
    """The ops of the contract for new tokens that are decoded."""

    fused_tokens = FUSED_TOKENS
    prompt_multiple = PROMPT_BOX

    def add_linear(self, x_NI: Array, weight_OI: Array, scale: float, out_NO: Array) -> None:
        """out ← out + scale · x Wᵀ"""
        self.products.multiply(x_NI, False, weight_OI, True, out_NO, scale, add=out_NO)

    def decode_fused(self, step: DecodeStep) -> None:
        """Decode by fused kernels; writes past the cache's capacity are dropped."""
        if step.starts_BT.shape[1] > self.fused_tokens:
            attention, mlp = step.forms[:2]
            assert isinstance(attention, AttentionForm)
            assert isinstance(mlp, SwigluForm)
            query = self.prompts.read(step, sizes_of(attention, mlp, step.x_ND.shape[1]))
            if query is not None:
                self.end_prompts(step, query)
            return
        layers = [layer_of(step, index) for index in range(len(step.forms) // 2)]
        compute = self.step_of(layers[0].sizes, len(step.x_ND))
        for layer in layers:
            compute(layer)

    def end_prompts(self, step: DecodeStep, query_BHE: Array) -> None:
        """Finish the last layer for the last token of each sequence, after q, k and v."""
        layer = layer_of(step, len(step.forms) // 2 - 1)
        if layer.sizes.qk_norm:  # heads are normed
            layer.sizes = replace(layer.sizes, qk_norm=False)
        layer.x_BD, layer.lengths, layer.query = step.last_BD, step.ends_B, query_BHE
        self.step_of(layer.sizes, layer.rows)(layer)

    def longest_prompts(self, forms: Sequence[BlockForm], dim: int, rows: int) -> int:
        if not (self.has_clusters and self.repeats((AttentionForm, SwigluForm), forms)):
            return 0
        attention, mlp = forms[:2]
        assert isinstance(attention, AttentionForm)
        assert isinstance(mlp, SwigluForm)
        return most_tokens(sizes_of(attention, mlp, dim)) // rows

    def step_of(self, sizes: DecodingSizes, rows: int) -> Callable[[LayerStep], None]:
        """The kernels for a layer of these sizes and so many rows."""
        few = most_rows(sizes, self.activation.itemsize)
        is_taken = self.has_clusters and rows <= MOST_MANY_ROWS
        many = is_taken and many_rows_fit(sizes, many_bucket(rows))
        if rows <= (min(few, FEW_ROWS) if many else few):
            return self.few_rows_step
        if many:
            return self.many_rows_step
        return self.composed_biased_step if sizes.gpt2 else self.composed_step

    def few_rows_step(self, step: LayerStep) -> None:
        s, a, m, x, lengths = step.sizes, step.a, step.m, step.x_BD, step.lengths
        B, S = step.rows, step.capacity
        source = self.sources.decode_layer(s, bucket(B), step.tokens)
        span = blocks(blocks(S, parts_of(bucket(B))), LEAST_SPAN) * LEAST_SPAN
        splits = blocks(S, span)
        query, hidden, parts, shares = self.scratch.take(
            "decoding",
            ((B, s.query_width), self.activation),
            ((B, s.ffn), self.activation),
            ((B, s.heads, splits, s.head_size), np.float32),
            ((B, s.heads, splits, 2), np.float32),
        )
        pairs = (s.heads + 2 * s.kv_heads) * s.head_size // 2
        inputs = x, a.norm, a.norm_bias, float(step.attention.epsilon)
        weights = a.query_key_value, a.query_key_value_bias
        rotation = lengths, *step.table
        outputs = query, *step.slots, B, S, step.cache_stride
        if step.query is None:
            self.launch_warps(source, "project", pairs, *inputs, *weights, *rotation, *outputs)
        else:
            query = step.query
        attention = self.sources.decode_attention(s, step.tokens, MOSTLY_CACHE)
        self.attend(attention, step, query, span, splits, None, parts, shares)
        attended = parts, shares, lengths, span, splits
        output = a.output, a.output_bias, float(step.attention.step_size), x
        self.launch_warps(source, "output", s.dim, *attended, *output, B)
        warps = s.ffn // row_pairs(B, self.activation.itemsize)
        epsilon, down_bias = float(step.mlp.epsilon), None
        if isinstance(m, GeluWeights):
            down_bias, norm = m.down_bias, (m.norm, m.norm_bias, epsilon)
            self.launch_warps(source, "up", warps // 2, x, *norm, m.up, m.up_bias, hidden, B)
        else:
            self.launch_warps(source, "gate_up", warps, x, m.norm, epsilon, m.gate_up, hidden, B)
        step_size = float(step.mlp.step_size)
        self.launch_warps(source, "down", s.dim, hidden, m.down, down_bias, step_size, x, B)

    def many_rows_step(self, step: LayerStep) -> None:
        s, a, m, x, lengths = step.sizes, step.a, step.m, step.x_BD, step.lengths
        B, S, most = step.rows, step.capacity, many_bucket(step.rows)
        source = self.sources.many_rows_layer(s, most, step.tokens)
        products, attention = many_rows_products(s, most), many_rows_attention(s, most)
        span = blocks(blocks(S, attention.parts), LEAST_SPAN) * LEAST_SPAN
        splits = blocks(S, span)
        query, hidden, attended, parts, shares = self.scratch.take(
            "decoding",
            ((B, s.query_width), self.activation),
            ((B, s.ffn), self.activation),
            ((B, s.width), self.activation),
            ((B, s.heads, splits, s.head_size), np.float32),
            ((B, s.heads, splits, 2), np.float32),
        )

        def launch(kernel: str, *arguments: Argument) -> None:
            self.launch_clusters(source, kernel, products[kernel], *arguments)

        norm = a.norm, a.norm_bias, float(step.attention.epsilon)
        weights = a.query_key_value, a.query_key_value_bias
        rotation, sizes = (lengths, *step.table), (B, S, step.cache_stride)
        if step.query is None:
            launch("project", x, *norm, *weights, *rotation, query, *step.slots, *sizes)
        else:
            query = step.query
        whole = attended if attention.parts == 1 else None
        block = attention.warps * WARP, attention.shared_bytes
        self.attend(source, step, query, span, splits, whole, parts, shares, block)
        found = whole, parts, shares, lengths, span, splits
        output = a.output, a.output_bias, float(step.attention.step_size), x
        launch("output", *found, *output, B)
        epsilon, down_bias = float(step.mlp.epsilon), None
        if isinstance(m, GeluWeights):
            down_bias = m.down_bias
            launch("up", x, m.norm, m.norm_bias, epsilon, m.up, m.up_bias, hidden, B)
        else:
            launch("gate_up", x, m.norm, epsilon, m.gate_up, hidden, B)
        launch("down", hidden, m.down, down_bias, float(step.mlp.step_size), x, B)

    def composed_step(self, step: LayerStep) -> None:
        s, a, m, x, B = step.sizes, step.a, step.m, step.x_BD, step.rows
        assert isinstance(step.mlp, SwigluForm)
        assert isinstance(m, SwigluWeights)
        columns = step.attention.columns, step.mlp.columns
        widths = s.dim, columns[0], s.query_width, s.width, columns[1], s.ffn
        activations = [((B, width), self.activation) for width in widths]
        normed, packed, query, attended, gate_up, hidden, inverse_rms = self.scratch.take(
            "decoding", *activations, ((B,), np.float32)
        )
        if step.query is None:
            self.rms_norm(RmsNorm(x, a.norm, step.attention.epsilon, normed, inverse_rms))
            self.linear(normed, a.query_key_value, packed)
            self.fill_slots(step, packed, query)
        else:
            query = step.query
        self.attend_whole(step, query, attended)
        self.add_linear(attended, a.output, step.attention.step_size, x)
        self.rms_norm(RmsNorm(x, m.norm, step.mlp.epsilon, normed, inverse_rms))
        product = GateUp(gate_up, step.mlp.gate, step.mlp.up)
        self.linear_swiglu(normed, m.gate_up, product, hidden)
        self.add_linear(hidden, m.down, step.mlp.step_size, x)

    def composed_biased_step(self, step: LayerStep) -> None:
        s, a, m, x, B = step.sizes, step.a, step.m, step.x_BD, step.rows
        assert isinstance(m, GeluWeights)
        widths = s.dim, s.dim, 3 * s.dim, s.dim, s.dim, s.ffn, s.ffn
        activations = [((B, width), self.activation) for width in widths]
        normed, delta, packed, query, attended, up, hidden, inverse_rms = self.scratch.take(
            "decoding", *activations, ((B,), np.float32)
        )
        first = LayerNorm(x, a.norm, a.norm_bias, step.attention.epsilon, normed, inverse_rms)
        second = LayerNorm(x, m.norm, m.norm_bias, step.mlp.epsilon, normed, inverse_rms)
        self.layer_norm(first)
        self.linear_bias(normed, a.query_key_value, a.query_key_value_bias, packed)
        self.fill_slots(step, packed, query)
        self.attend_whole(step, query, attended)
        self.linear(attended, a.output, delta)
        self.add_layer_norm(x, delta, a.output_bias, step.attention.step_size, second)
        self.linear_gelu(normed, m.up, m.up_bias, up, hidden)
        self.linear(hidden, m.down, delta)
        self.add_layer_norm(x, delta, m.down_bias, step.mlp.step_size, first)  # its norm is unused

    def fill_slots(self, step: LayerStep, packed: Array, query: Array) -> None:
        """From the product q, k, v to queries, and to keys and values in the cache."""
        s, B, source = step.sizes, step.rows, self.sources.decode_attention(step.sizes, step.tokens)
        threads = B * (s.heads + 2 * s.kv_heads) * s.head_size // (2 * WIDTH)
        grid = blocks(threads, ATTEND_THREADS)
        inputs = packed, np.int64(packed.shape[1]), step.lengths, *step.table
        outputs = query, *step.slots
        sizes = step.cache_stride, step.capacity, B
        self.launch(source, "fill_slots", grid, ATTEND_THREADS, *inputs, *outputs, *sizes)

    def attend_whole(self, step: LayerStep, query: Array, attended: Array) -> None:
        """Attention to the keys of a row in one part."""
        source = self.sources.decode_attention(step.sizes, step.tokens)
        self.attend(source, step, query, step.capacity, 1, attended, None, None)

    def attend(
        self,
        source: Source,
        step: LayerStep,
        query: Array,
        span: int,
        splits: int,
        out: Array | None,
        parts: Array | None,
        shares: Array | None,
        block: tuple[int, int] = (ATTEND_THREADS, 0),
    ) -> None:
        """Attention of the new tokens, the keys of a row in `splits` parts of `span`: to `out`, or
        as parts and their shares. Norms of heads are applied on the way. `block`: its threads and
        bytes of shared memory."""
        s, a, (threads, shared) = step.sizes, step.a, block
        grid = splits, s.heads // s.heads_together, step.rows
        inputs = query, *step.slots, step.cache_stride, step.lengths
        norms = *step.table, a.query_norm, a.key_norm, float(step.attention.epsilon)
        sizes = step.capacity, span, s.head_size**-0.5
        outputs = out, parts, shares
        arguments = *inputs, *norms, *sizes, *outputs
        # behind the tokens of a prompt, it would fetch their keys before they are written
        early = step.query is None
        self.launch(source, "attend", grid, threads, *arguments, shared=shared, early=early)

    def next_logits(self, norm: Norm, weight_VD: Array, out_BV: Array) -> None:
        x_BD, gpt2 = norm.x_ND, isinstance(norm, LayerNorm)
        bias_D = norm.bias_D if isinstance(norm, LayerNorm) else None
        inputs = x_BD, norm.weight_D, bias_D, float(norm.epsilon)
        (B, D), V = x_BD.shape, len(weight_VD)
        product = many_rows_head(D, V, many_bucket(B), gpt2=gpt2)
        many = self.has_clusters and FEW_ROWS < B <= MOST_MANY_ROWS
        if many and product.fits and not product.is_huge:
            source = self.sources.many_rows_head(D, V, many_bucket(B), gpt2=gpt2)
            self.launch_clusters(source, "head", product, *inputs, weight_VD, out_BV, V, B)
        elif head_fits(B, D, self.activation.itemsize):
            source = self.sources.decode_head(D, bucket(B), gpt2=gpt2)
            warps = V // (2 * row_pairs(B, self.activation.itemsize))
            most = HEAD_BLOCKS * self.device.multiprocessors * FEW_ROWS_WARPS
            arguments = *inputs, weight_VD, out_BV, V, B
            self.launch_warps(source, "head", min(warps, most), *arguments)
        else:
            super().next_logits(norm, weight_VD, out_BV)

    def launch_warps(self, source: Source, kernel: str, warps: int, *arguments: Argument) -> None:
        # Always whole blocks: smaller ones would spread over more multiprocessors, but they took
        # 0.210 ms a token instead of 0.198.
        grid, threads = blocks(warps, FEW_ROWS_WARPS), FEW_ROWS_WARPS * WARP
        self.launch(source, kernel, grid, threads, *arguments, early=True)

    def launch_clusters(
        self, source: Source, kernel: str, product: ManyRowsProduct, *arguments: Argument
    ) -> None:
        grid, threads, shared = product.blocks, MANY_ROWS_WARPS * WARP, product.shared_bytes
        self.launch(source, kernel, grid, threads, *arguments, shared=shared, early=True)


def bucket(rows: int) -> int:
    """The number of rows that a kernel for `rows` of them is compiled for."""
    return 1 << (rows - 1).bit_length()


def many_bucket(rows: int) -> int:
    """Rows that a kernel of many_rows.cuh for `rows` of them is compiled for."""
    return max(8, bucket(rows))


def layer_of(step: DecodeStep, index: int) -> LayerStep:
    """A layer of a step: an attention and an MLP block."""
    first, second = 2 * index, 2 * index + 1
    attention, mlp, slots = step.forms[first], step.forms[second], step.slots[first]
    assert isinstance(attention, AttentionForm)
    assert isinstance(mlp, SwigluForm | GeluForm)
    assert slots is not None
    return LayerStep(
        sizes_of(attention, mlp, step.x_ND.shape[1]),
        attention,
        mlp,
        step.weights[first],
        step.weights[second],
        slots,
        step.rope_table,
        step.x_ND,
        step.lengths_B,
    )


def sizes_of(attention: AttentionForm, mlp: SwigluForm | GeluForm, dim: int) -> DecodingSizes:
    """The sizes that the kernels of a layer are compiled for."""
    a, gpt2 = attention, isinstance(mlp, GeluForm)
    starts = a.key.start, a.value.start, mlp.up.start if isinstance(mlp, SwigluForm) else 0
    kind = a.qk_norm != "none", gpt2
    return known_sizes(dim, mlp.ffn, a.heads, a.kv_heads, a.head_size, *starts, *kind)


known_sizes = functools.cache(DecodingSizes)  # those of every layer, for somebody who waits
