"""The forward and the backward pass, composed of a backend's ops and written once for all backends.

One layer is two Euler steps in depth (h = `step_size`):

    x ← x + h · attention(norm(x))
    x ← x + h · swiglu_mlp(norm(x))

A block's last product, the residual add and the norm that follows are one op, `euler_step`.
The backward pass walks the same lines in reverse order; each op's gradient formula stands beside the op in
`backend/reference.py`. What an op of the backward pass can compute again while it has its inputs at hand (the output of a
norm, of SwiGLU) is not kept from the forward pass, and gradients take the place of what is no longer needed.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.backend.attention_arrays import AttentionArrays
from nanoeuler.model.cache import CACHE_PLACES, Cache, CacheMemory, CacheStep, give_back
from nanoeuler.model.flat import ModelViews, PackedColumns
from nanoeuler.model.spec import ModelConfig, round_up, storage_elements, tensor_table

Array = Any
"""An array of the backend: NumPy's or CuPy's."""


LOGITS_AT_ONCE = 1 << 28
"""Elements of the largest buffer of logits: beyond it the heads take the tokens of a batch in several parts."""


@dataclass
class LayerActivations:
    """What the backward pass of a layer needs of its forward pass."""

    x: Array  # (N, D) residual stream at the layer's input
    attention_inverse_rms: Array  # (N,)
    query_key_value: Array  # (N, packed columns), rotated
    attention_out: Array  # (N, H·E)
    lse: Array  # (B, H, T)
    middle: Array  # (N, D) residual stream between attention and MLP
    mlp_inverse_rms: Array  # (N,)
    gate_up: Array  # (N, packed columns); the backward pass puts its gradient there
    attended: "AttentionViews | None" = None


@dataclass
class AttentionViews(AttentionArrays):
    """What attention reads and writes. Made once: a slice of a short pass has dozens of views, and each takes Python a microsecond."""

    rotated: list[Array]  # (N, heads, E): what rotary positions turn


class Activations:
    """All buffers of a pass over rows of one shape (B, T), planned once: passes of that shape allocate nothing new.

    With `training` every layer has buffers of its own and gradients have theirs; without, the layers share one set.
    """

    def __init__(
        self,
        config: ModelConfig,
        columns: PackedColumns,
        backend: Any,
        batch: int,
        length: int,
        training: bool,
        recompute: bool,
    ):
        self.batch, self.length, self.training = batch, length, training
        self.logits_at_once = getattr(backend, "logits_at_once", LOGITS_AT_ONCE)

        def lay_out(memory: Any) -> None:
            self.lay_out(config, columns, backend.activation, backend.residual, memory, recompute)

        if hasattr(backend, "in_one_block"):
            backend.in_one_block(lay_out)
        else:
            lay_out(backend)

    def lay_out(
        self,
        c: ModelConfig,
        columns: PackedColumns,
        activation: Any,
        residual: Any,
        memory: Any,
        recompute: bool,
    ) -> None:
        """Take every buffer from `memory`, a backend or what stands for one."""
        batch, length, training = self.batch, self.length, self.training
        N = batch * length

        def empty(*shape: int) -> Array:
            return memory.empty(shape, activation)

        def stream() -> Array:
            return memory.empty((N, c.dim), residual)

        gate_up = empty(N, columns.gate_up) if recompute else None

        def layer() -> LayerActivations:
            return LayerActivations(
                x=stream(),
                attention_inverse_rms=memory.empty((N,)),
                query_key_value=empty(N, columns.query_key_value),
                attention_out=empty(N, c.heads * c.head_size),
                lse=memory.empty((batch, c.heads, length)),
                middle=stream(),
                mlp_inverse_rms=memory.empty((N,)),
                gate_up=empty(N, columns.gate_up) if gate_up is None else gate_up,
            )

        self.layers = [layer() for _ in range(c.layers)] if training else [layer()] * c.layers
        self.offset = memory.zeros(
            (batch,), np.int32
        )  # of the queries among the keys: none, outside of a cache
        self.normed = empty(N, c.dim)  # input of a layer's next product
        self.mlp_hidden = empty(N, c.ffn_storage)
        self.delta = empty(N, c.dim)
        self.final = stream()
        self.final_inverse_rms = memory.empty((N,))
        self.hidden = self.normed  # of the last layer: what the heads read
        if training:
            parts = -(-N * columns.heads // self.logits_at_once)
            self.tokens_at_once = min(N, round_up(-(-N // parts), 128)) if parts > 1 else N
            self.logits = empty(self.tokens_at_once, columns.heads)
            self.dx = self.delta  # one is the forward pass's, the other the backward pass's
            self.dattention_out = empty(N, c.heads * c.head_size)
            # zeroed once: the ops never write the padding between packed parts, and its gradient must be zero
            self.dquery_key_value = memory.zeros((N, columns.query_key_value), activation)
            self.attended: AttentionViews | None = None  # of these two


@dataclass
class Batch:
    """Rows of tokens. Integer arrays of the backend; B rows of T tokens.

    `starts` is, per token, the place in its row where its document starts (0 throughout when documents may see each other)
    and `positions` its rotary position. Both are zero-based.
    """

    ids: Array  # (B, T)
    positions: Array  # (B, T)
    starts: Array  # (B, T)


class Transformer:
    """A model's computation: parameters, and what one does with them."""

    def __init__(
        self, config: ModelConfig, parameters: Array, backend: Any, recompute: bool = False
    ):
        """`parameters` is a flat buffer of the backend, laid out by `tensor_table(config)`.

        `recompute`: the layers share one buffer for the gate/up product, a training step's largest, and the backward pass
        computes it again.
        """
        backend.check(config)
        self.config, self.backend, self.recompute = config, backend, recompute
        self.parameters = parameters
        self.working = backend.working_copy(parameters)
        self.weights = ModelViews(config, self.working, norms=parameters)
        self.training_weights = self.weights
        """What the forward pass of training reads: the same values, for some engines laid out another way."""
        self.columns = PackedColumns(config)
        self.plans: dict[tuple[int, int, bool], Activations] = {}
        self.idle_caches: dict[tuple[int, int], CacheMemory] = {}
        self.rope_table = backend.rope_table(config.context, config.head_size, config.rope_theta)

    def plan(self, batch: int, length: int, training: bool) -> Activations:
        """The buffers for rows of shape (batch, length); made at the first call, and only one shape of each kind is kept."""
        key = (batch, length, training)
        if key not in self.plans:
            for other in [other for other in self.plans if other[2] == training]:
                del self.plans[other]
            self.plans[key] = Activations(
                self.config, self.columns, self.backend, batch, length, training, self.recompute
            )
        return self.plans[key]

    def refresh(self) -> None:
        """Take note that `parameters` were written from outside, as when a checkpoint is read."""
        self.backend.refresh(self.working, self.parameters)

    def need_positions(self, positions: int) -> None:
        """Lengthen the rotary table to at least `positions`: RoPE has no parameters, so a context may grow after training."""
        if len(self.rope_table[0]) < positions:
            self.rope_table = self.backend.rope_table(
                positions, self.config.head_size, self.config.rope_theta
            )

    # ---- forward

    def forward(self, batch: Batch, training: bool = False) -> Activations:
        """Run all layers; the normed output of the last is `hidden` of the returned buffers. Logits are a step of their own."""
        B, T = batch.ids.shape
        self.need_positions(T)
        c, ops, weights = (
            self.config,
            self.backend,
            self.training_weights if training else self.weights,
        )
        buffers = self.plan(B, T, training)
        positions, starts = batch.positions.reshape(-1), batch.starts
        first = buffers.layers[0]
        ops.embedding(batch.ids.reshape(-1), weights.embedding, first.x)
        ops.rms_norm(
            first.x,
            weights.layers[0].attention_norm,
            c.norm_epsilon,
            buffers.normed,
            first.attention_inverse_rms,
        )
        for index, (layer, a) in enumerate(zip(weights.layers, buffers.layers, strict=True)):
            if a.attended is None:
                a.attended = self.attention_views(a.query_key_value, a.attention_out, B)
            views = a.attended
            ops.linear_rope(
                buffers.normed,
                layer.query_key_value,
                a.query_key_value,
                views.rotated,
                positions,
                self.rope_table,
            )
            ops.attention(
                views.query, views.key, views.value, starts, buffers.offset, views.out, a.lse
            )
            self.finish_layer(index, layer, a, buffers)
        return buffers

    def finish_layer(
        self, index: int, layer: Any, a: LayerActivations, buffers: Activations
    ) -> None:
        """From attention's output to the next layer's normed input."""
        c, ops, h, epsilon = (
            self.config,
            self.backend,
            self.config.step_size,
            self.config.norm_epsilon,
        )
        delta, normed, hidden = buffers.delta, buffers.normed, buffers.mlp_hidden
        ops.euler_step(
            a.attention_out,
            layer.attention_output,
            delta,
            a.x,
            h,
            layer.mlp_norm,
            epsilon,
            a.middle,
            normed,
            a.mlp_inverse_rms,
        )
        ops.linear_swiglu(
            normed, layer.gate_up, a.gate_up, self.columns.gate, self.columns.up, hidden
        )
        if index + 1 < c.layers:
            following = buffers.layers[index + 1]
            norm, total, out, inverse_rms = (
                self.weights.layers[index + 1].attention_norm,
                following.x,
                normed,
                following.attention_inverse_rms,
            )
        else:
            norm, total, out, inverse_rms = (
                self.weights.final_norm,
                buffers.final,
                buffers.hidden,
                buffers.final_inverse_rms,
            )
        ops.euler_step(
            hidden, layer.down, delta, a.middle, h, norm, epsilon, total, out, inverse_rms
        )

    def gather_hidden(self, buffers: Activations, index_R: Array) -> None:
        """Move what the heads read at some tokens to the front of `hidden`."""
        buffers.hidden[: len(index_R)] = buffers.hidden[index_R]

    def scatter_hidden(self, buffers: Activations, index_R: Array) -> None:
        """Move the gradients of what the heads read, at the front of `hidden`, back to their tokens; the others' are zero."""
        moved = buffers.hidden[: len(index_R)].copy()
        buffers.hidden[...] = 0
        buffers.hidden[index_R] = moved

    def head_parts(self, buffers: Activations, tokens: int) -> list[slice]:
        """The first `tokens` of a training batch in parts whose logits fit into their buffer: mostly one part."""
        N, size = tokens, buffers.tokens_at_once
        return [slice(start, min(start + size, N)) for start in range(0, N, size)]

    def all_logits(self, buffers: Activations, part: slice = slice(None)) -> Array:
        """Logits of all K heads as (tokens·K, V): row n·K + k is head k at token n of `part`. A training buffer, overwritten by its gradient."""
        hidden = buffers.hidden[part]
        self.backend.linear(hidden, self.training_weights.heads, buffers.logits[: len(hidden)])
        return self.logit_rows(buffers, len(hidden))

    def logit_rows(self, buffers: Activations, tokens: int | None = None) -> Array:
        return buffers.logits[:tokens].reshape(-1, self.columns.head)[:, : self.config.vocab_size]

    def first_logits(self, hidden_ND: Array) -> Array:
        """Logits of head 0, (N, V)."""
        out = self.backend.empty((hidden_ND.shape[0], self.columns.head), self.backend.activation)
        self.backend.linear(hidden_ND, self.weights.first_head, out)
        return out[:, : self.config.vocab_size]

    # ---- backward

    def backward(
        self, batch: Batch, buffers: Activations, gradients: ModelViews, accumulate: bool = False
    ) -> None:
        """From the gradient of all logits (left in `buffers.logits` by the cross-entropy) to `gradients` of every parameter.

        `accumulate` adds to what `gradients` holds (further micro-batches) instead of overwriting it. The gate/up products and the
        logits of `buffers` are overwritten: one backward pass for each forward pass.
        """
        self.backward_heads(
            buffers, slice(0, buffers.batch * buffers.length), gradients, accumulate
        )
        self.backward_layers(batch, buffers, gradients, accumulate)

    def backward_heads(
        self, buffers: Activations, part: slice, gradients: ModelViews, accumulate: bool
    ) -> None:
        """From the gradient of the logits of `part` to that of the heads and, in the place of `hidden`, of what the heads read."""
        ops, logits, hidden = (
            self.backend,
            buffers.logits[: part.stop - part.start],
            buffers.hidden[part],
        )
        if self.columns.head != self.config.vocab_size:
            logits.reshape(-1, self.columns.head)[:, self.config.vocab_size :] = 0
        ops.linear_backward_weight(logits, hidden, gradients.heads, accumulate)
        ops.linear_backward_input(logits, self.weights.heads, hidden)

    def backward_layers(
        self, batch: Batch, buffers: Activations, gradients: ModelViews, accumulate: bool
    ) -> None:
        """From the gradient of what the heads read to `gradients` of everything below them."""
        c, ops, weights = self.config, self.backend, self.weights
        B, _ = batch.ids.shape
        h, positions = c.step_size, batch.positions.reshape(-1)
        dx, normed, hidden = buffers.dx, buffers.normed, buffers.mlp_hidden
        gate, up = self.columns.gate, self.columns.up
        if buffers.attended is None:
            buffers.attended = self.attention_views(
                buffers.dquery_key_value, buffers.dattention_out, B
            )
        ops.rms_norm_backward(
            buffers.hidden,
            buffers.final,
            weights.final_norm,
            buffers.final_inverse_rms,
            dx,
            gradients.final_norm,
            add_to_dx=False,
            accumulate=accumulate,
        )
        # `normed` and `hidden` hold the gradient of a product's input, then that input itself, computed again
        for layer, gradient, a in reversed(
            list(zip(weights.layers, gradients.layers, buffers.layers, strict=True))
        ):
            if self.recompute:
                ops.rms_norm(a.middle, layer.mlp_norm, c.norm_epsilon, normed, a.mlp_inverse_rms)
                ops.linear_swiglu(
                    normed, layer.gate_up, a.gate_up, gate, up, hidden
                )  # `hidden` again below: the same op gives the same bits
            # x + h · mlp(norm(x)): dx flows past the MLP unchanged, and into it scaled by h
            ops.linear_swiglu_backward(dx, layer.down, h, a.gate_up, gate, up, hidden)
            ops.linear_backward_weight(dx, hidden, gradient.down, accumulate, scale=h)
            ops.linear_backward_input(a.gate_up, layer.gate_up, normed)
            ops.rms_norm_backward(
                normed,
                a.middle,
                layer.mlp_norm,
                a.mlp_inverse_rms,
                dx,
                gradient.mlp_norm,
                True,
                accumulate,
                normed,
            )
            ops.linear_backward_weight(a.gate_up, normed, gradient.gate_up, accumulate)
            # x + h · attention(norm(x))
            ops.linear_backward_weight(
                dx, a.attention_out, gradient.attention_output, accumulate, scale=h
            )
            ops.linear_backward_input(dx, layer.attention_output, buffers.dattention_out, scale=h)
            ops.attention_backward(
                a.attended, buffers.attended, batch.starts, a.lse, (positions, self.rope_table)
            )
            ops.linear_backward_input(buffers.dquery_key_value, layer.query_key_value, normed)
            ops.rms_norm_backward(
                normed,
                a.x,
                layer.attention_norm,
                a.attention_inverse_rms,
                dx,
                gradient.attention_norm,
                True,
                accumulate,
                normed,
            )
            ops.linear_backward_weight(
                buffers.dquery_key_value, normed, gradient.query_key_value, accumulate
            )
        # a tied embedding already holds head 0's gradient
        ops.embedding_backward(batch.ids.reshape(-1), dx, gradients.embedding, accumulate or c.tied)

    # ---- inference

    def new_cache(self, rows: int, capacity: int) -> Cache:
        most = getattr(self.backend, "idle_caches", 0)
        places = round_up(capacity, CACHE_PLACES) if most else capacity
        memory = self.idle_caches.pop((rows, places), None) or CacheMemory(
            self.config, self.backend, rows, places
        )
        cache = Cache(memory, rows, capacity)
        if most:
            weakref.finalize(
                cache, give_back, self.idle_caches, (rows, places), memory, most
            ).atexit = False
        return cache

    def extend(
        self,
        cache: Cache,
        tokens: np.ndarray,
        counts: np.ndarray | None = None,
        every: bool = False,
    ) -> Array:
        """Append tokens to every row of `cache` and return head 0's logits: prefill, decoding and checking a draft in one call.

        `tokens` is (rows, n) with n ≥ 1; row b appends its first counts[b] ≥ 1 (default: all n). Returns the logits behind each
        row's last token, (rows, V), or behind every token, (rows, n, V), when `every` is set (rows past counts[b] mean nothing).
        Raises ValueError when a row would outgrow the cache.
        """
        logits = self.first_logits(self.extend_hidden(cache, tokens, counts, every))
        return logits.reshape(*np.shape(tokens), self.config.vocab_size) if every else logits

    def extend_hidden(
        self,
        cache: Cache,
        tokens: np.ndarray,
        counts: np.ndarray | None = None,
        every: bool = False,
    ) -> Array:
        """`extend`, but for the product with the head: what it reads, (rows, D), or (rows·n, D) when `every` is set."""
        tokens = np.asarray(tokens, np.int32)
        B, n = tokens.shape
        counts = np.full(B, n, np.int32) if counts is None else np.asarray(counts, np.int32)
        if len(cache.lengths) != B or counts.min() < 1 or counts.max() > n:
            raise ValueError(
                f"tokens of shape {tokens.shape} with counts {counts.tolist()} do not fit a cache of {len(cache.lengths)} rows"
            )
        if int((cache.lengths + counts).max()) > cache.capacity:
            raise ValueError(
                f"the cache holds {cache.capacity} tokens a row; it has {cache.lengths.tolist()} and {counts.tolist()} more do not fit"
            )
        if (
            n == 1 and getattr(self.backend, "few_rows", 0) >= B
        ):  # an engine whose arrays are the host's: nothing to load, nothing to record
            self.need_positions(cache.capacity + n)
            buffers = self.plan(B, n, training=False)
            x = self.append_one(
                cache.keys, cache.values, tokens[:, 0], cache.lengths, buffers, self.rope_table
            )
            self.backend.rms_norm(
                x,
                self.weights.final_norm,
                self.config.norm_epsilon,
                buffers.hidden,
                buffers.final_inverse_rms,
            )
            cache.lengths += 1
            return buffers.hidden
        step, place = cache.step(self, n), np.arange(n, dtype=np.int32)
        self.backend.load(
            step.flat,
            [tokens, cache.lengths[:, None] + place, np.zeros((B, n), np.int32), cache.lengths],
        )
        step.recorded = self.backend.run(lambda: self.append(cache, step), step.recorded)
        cache.lengths += counts
        hidden = step.buffers.hidden
        return (
            hidden
            if every or n == 1
            else self.backend.gather(hidden, np.arange(B) * n + counts - 1)
        )

    def append(self, cache: Cache, step: "CacheStep") -> None:
        """Run all layers on the new tokens of `step`, and keep their keys and values."""
        c, ops, weights, buffers = self.config, self.backend, self.weights, step.buffers
        B, positions, first = len(step.offset), step.positions.reshape(-1), step.buffers.layers[0]
        if len(positions) == B <= getattr(ops, "few_rows", B) and hasattr(ops, "decode"):
            x = self.append_one(
                cache.keys,
                cache.values,
                step.tokens.reshape(-1),
                step.offset,
                buffers,
                step.rope_table,
            )
            ops.rms_norm(
                x, weights.final_norm, c.norm_epsilon, buffers.hidden, buffers.final_inverse_rms
            )
            return
        ops.embedding(step.tokens.reshape(-1), weights.embedding, first.x)
        ops.rms_norm(
            first.x,
            weights.layers[0].attention_norm,
            c.norm_epsilon,
            buffers.normed,
            first.attention_inverse_rms,
        )
        for index, (layer, a) in enumerate(zip(weights.layers, buffers.layers, strict=True)):
            packed = a.query_key_value
            ops.linear_rope(
                buffers.normed,
                layer.query_key_value,
                packed,
                self.rotated(packed),
                positions,
                step.rope_table,
            )
            query, key, value = self.split(a.query_key_value)
            keys, values = cache.keys[index], cache.values[index]
            # short rows write past their end; those places are overwritten later
            ops.write_cache(keys, rows(key, B), step.offset)
            ops.write_cache(values, rows(value, B), step.offset)
            ops.attention(
                rows(query, B),
                keys,
                values,
                step.starts,
                step.offset,
                rows(self.by_head(a.attention_out), B),
                a.lse,
            )
            self.finish_layer(index, layer, a, buffers)

    def append_one(
        self,
        keys: list[Array],
        values: list[Array],
        tokens_B: Array,
        lengths_B: Array,
        buffers: Activations,
        rope_table: tuple[Array, Array],
    ) -> Array:
        """`append` for one token a row, in an engine that offers all layers as one op; returns the residual stream behind the last layer."""
        c, ops, weights = self.config, self.backend, self.weights
        x = buffers.layers[0].x
        ops.embedding(tokens_B, weights.embedding, x)
        ops.decode(
            x,
            lengths_B,
            weights.layers,
            self.columns,
            rope_table,
            keys,
            values,
            c.norm_epsilon,
            c.step_size,
        )
        return x

    # ---- views

    def split(self, packed_NC: Array) -> tuple[Array, Array, Array]:
        """Views of q (N, H, E), k and v (N, G, E) in a packed product."""
        return tuple(
            self.by_head(packed_NC[:, part])
            for part in (self.columns.query, self.columns.key, self.columns.value)
        )

    def attention_views(self, packed_NC: Array, out_NC: Array, batch: int) -> AttentionViews:
        parts = [rows(part, batch) for part in (*self.split(packed_NC), self.by_head(out_NC))]
        return AttentionViews(*parts, self.rotated(packed_NC))

    def rotated(self, packed_NC: Array) -> list[Array]:
        """What rotary positions turn in a packed product: q and k as one view, or as two where padding lies between them."""
        query, key = self.columns.query, self.columns.key
        parts = [slice(query.start, key.stop)] if query.stop == key.start else [query, key]
        return [self.by_head(packed_NC[:, part]) for part in parts]

    def by_head(self, x_NC: Array) -> Array:
        return x_NC.reshape(x_NC.shape[0], -1, self.config.head_size)


def rows(x: Array, batch: int) -> Array:
    """(N, …) → (B, T, …)"""
    return x.reshape(batch, x.shape[0] // batch, *x.shape[1:])


def initial_parameters(config: ModelConfig, seed: int) -> np.ndarray:
    """A flat float32 buffer of fresh parameters: normal with each tensor's spread, norms 1, padding 0.

    Each tensor draws from a counter-based stream of its own, keyed by the seed and its place in the table.
    """
    table = tensor_table(config)
    buffer = np.zeros(storage_elements(table), np.float32)
    for index, tensor in enumerate(table):
        view = buffer[tensor.offset : tensor.stop].reshape(tensor.storage_shape)[
            tuple(slice(size) for size in tensor.shape)
        ]
        if tensor.initial_std is None:
            view[...] = 1
        else:
            generator = np.random.Generator(np.random.Philox(key=[seed, index]))
            view[...] = generator.standard_normal(tensor.shape, np.float32) * np.float32(
                tensor.initial_std
            )
    return buffer
