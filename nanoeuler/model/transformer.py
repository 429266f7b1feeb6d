"""The forward and the backward pass: a loop over blocks, written once for all engines.

Each block is one forward-Euler step in depth (h = `step_size`):

    x ← x + h · f(norm(x))

A layer is two of them, attention and MLP. A block ends with the norm in front of the next one, so
that an engine may compute product, step and norm together (`euler_step`). The backward pass takes
the blocks in reverse order. The formulas of the ops stand in `backend/reference.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, CacheSlots, ModelWeights, NormGradients
from nanoeuler.model.blocks.block import BlockPass, Rows
from nanoeuler.model.buffers import KeptBuffers, PassBuffers
from nanoeuler.model.cache import Cache, CachePool
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import make_blocks
from nanoeuler.model.flat import FlatBuffer, model_weights, weights_of
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.heads import Heads
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.rotary import RotaryTables
from nanoeuler.model.tensors import NamedArrays


@dataclass
class Batch:
    """B rows of T tokens, as int32 arrays of the engine."""

    ids: Array  # (B, T)
    positions: Array  # (B, T) rotary positions, from 0
    starts: Array  # (B, T) slot in the row at which the token's document starts
    seeds: Array | None = None  # (B, T) of the random numbers of dropout, where there is any

    @classmethod
    def of_documents(cls, ids_BT: np.ndarray, backend: Backend) -> "Batch":
        """Rows of one document each."""
        positions_BT = np.broadcast_to(np.arange(ids_BT.shape[1], dtype=np.int32), ids_BT.shape)
        arrays = ids_BT, positions_BT, np.zeros_like(ids_BT)
        return cls(*map(backend.from_host, arrays))


class Transformer:
    """A model's computation: parameters, and what one does with them."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Array | QuantizedBuffer,
        backend: Backend,
        *,
        base: Frozen | None = None,
        norms: NamedArrays | None = None,
        recompute: bool = False,
        dropout: float = 0.0,
        byte_cache: bool = False,
    ):
        """`parameters` is a flat buffer of the engine, laid out by `tensor_table(config)`, or
        quantized, for an engine that `reads_codes`. With a `base`, it is one of adapters alone.

        `norms`: float32 weights of norms, where `parameters` is the low-precision copy for
        products. `recompute`: MLP blocks share one buffer for the gate/up product, a training
        step's largest, and the backward pass computes it again. `dropout`: the share that a block's
        last product does not see, in passes with `Batch.seeds`. `byte_cache`: see `CachePool`.
        """
        self.config, self.backend, self.recompute = config, backend, recompute
        self.blocks = make_blocks(config, dropout)
        self.forms = [block.form for block in self.blocks]
        for form in self.forms:
            backend.check_form(replace(form, dropout=dropout or form.dropout), config.dim)
        self.heads = Heads(config, backend)
        self.parameters = parameters
        if isinstance(parameters, QuantizedBuffer):
            self.weights = weights_of(config, parameters, parameters)
        else:
            self.working = backend.working_copy(parameters)
            views, vectors = base.on_engine if base else (None, FlatBuffer(config, parameters))
            self.weights = model_weights(config, self.working, norms or vectors, views)
        self.training_weights = self.weights
        """The weights as training's forward pass reads them: see `Runtime.training_weights`."""
        w = self.weights
        points = [(block.norm, getattr(block, "norm_bias", None)) for block in w.blocks]
        points.append((w.final_norm, w.final_norm_bias))
        self.buffers = KeptBuffers(config, backend, points, recompute=recompute)
        self.caches = CachePool(backend, self.blocks, in_bytes=byte_cache)
        self.rotary = RotaryTables(config, backend)

    def refresh(self) -> None:
        """Take note that `parameters` were written from outside, as by a checkpoint."""
        self.backend.refresh(self.working, self.parameters)

    # ---- training and whole rows

    def forward(
        self,
        batch: Batch,
        *,
        training: bool = False,
        before_block: Callable[[int], None] | None = None,
    ) -> PassBuffers:
        """Run all blocks; the heads read `stream.normed` of the returned buffers.

        `before_block(i)` is called before block i's weights are read.
        """
        B, T = batch.ids.shape
        buffers = self.buffers(B, T, training=training)
        weights = self.training_weights if training else self.weights
        self.embed(batch.ids.reshape(-1), batch.positions.reshape(-1), buffers)
        self.run_blocks(self.rows(batch, buffers), buffers, weights, before_block=before_block)
        return buffers

    def rows(self, batch: Batch, buffers: PassBuffers) -> Rows:
        """What blocks are told of the tokens of `batch`."""
        self.rotary.need(buffers.length)
        positions = batch.positions.reshape(-1)
        seeds = None if batch.seeds is None else batch.seeds.reshape(-1)
        return Rows(positions, batch.starts, buffers.no_offset, self.rotary.whole, seeds)

    def embed(self, ids_N: Array, positions_N: Array, buffers: PassBuffers) -> None:
        """The tokens' embeddings are where the residual stream begins.

        With those of their positions, where these are learned.
        """
        w, x_ND = self.weights, buffers.norms[0].x_ND
        if w.positions is None:
            self.backend.embedding(ids_N, w.embedding, x_ND)
        else:
            self.backend.embedding_at(ids_N, w.embedding, positions_N, w.positions, x_ND)
        if self.config.embedding_scale != 1:
            self.backend.scale(x_ND, self.config.embedding_scale)

    def run_blocks(
        self,
        rows: Rows,
        buffers: PassBuffers,
        weights: ModelWeights,
        slots: list[CacheSlots | None] | None = None,
        first: int = 0,
        before_block: Callable[[int], None] | None = None,
    ) -> None:
        """From the stream before block `first` to the normed stream behind the last block.

        With `slots` the blocks append to a cache and read what it holds. `before_block`: see
        `forward`.
        """
        ops, norms, stream = self.backend, buffers.norms, buffers.stream
        rows.window_table = self.rotary.in_windows
        ops.norm(norms[first])
        for i in range(first, len(self.blocks)):
            block, w, saved = self.blocks[i], weights.blocks[i], buffers.blocks[i]
            cached = slots[i] if slots else None
            if before_block:
                before_block(i)
            block.forward(ops, w, saved, BlockPass(rows, norms[i], stream, norms[i + 1], cached))

    def backward(
        self,
        batch: Batch,
        buffers: PassBuffers,
        gradients: ModelWeights,
        *,
        accumulate: bool = False,
    ) -> None:
        """From the gradient of all logits, in `buffers.logits`, to that of every parameter.

        `accumulate` adds to `gradients` instead of overwriting them. The pass overwrites some of
        what the forward pass saved: one backward pass for each forward pass.
        """
        everything = slice(0, buffers.batch * buffers.length)
        self.backward_heads(buffers, gradients, everything, accumulate=accumulate)
        self.backward_blocks(batch, buffers, gradients, accumulate=accumulate)

    def backward_heads(
        self, buffers: PassBuffers, gradients: ModelWeights, tokens: slice, *, accumulate: bool
    ) -> None:
        """From the gradient of the logits of `tokens`, in `buffers.logits`, to that of the heads'
        weights and of what they read.

        A pass may take its tokens in parts, from the first on.
        """
        weight, dweight, adds = self.weights.heads, gradients.heads, accumulate or tokens.start > 0
        self.heads.backward(weight, dweight, buffers, tokens, accumulate=adds)

    def backward_blocks(
        self,
        batch: Batch,
        buffers: PassBuffers,
        gradients: ModelWeights,
        *,
        accumulate: bool,
        after_block: Callable[[int], None] | None = None,
    ) -> None:
        """From the gradient of what the heads read to `gradients` of everything below them.

        `after_block(i)` is called once the gradients of block i, and of all above it but a tied
        embedding's, are final.
        """
        ops, stream, rows = self.backend, buffers.stream, self.rows(batch, buffers)
        rows.window_table = self.rotary.in_windows
        dweights = gradients.final_norm, gradients.final_norm_bias
        into = NormGradients(stream.dx, *dweights, accumulate=accumulate)
        ops.norm_backward(stream.dnormed, buffers.norms[-1], into)
        for i in reversed(range(len(self.blocks))):
            block, saved, norm = self.blocks[i], buffers.blocks[i], buffers.norms[i]
            p = BlockPass(rows, norm, stream, buffers.norms[i + 1], accumulate=accumulate)
            w, dw = self.weights.blocks[i], gradients.blocks[i]
            if self.recompute and block.recomputable:
                block.recompute(ops, w, saved, norm)
            block.backward(ops, w, dw, saved, p)
            if after_block:
                after_block(i)
        if self.config.embedding_scale != 1:
            ops.scale(stream.dx, self.config.embedding_scale)
        # a tied embedding already holds head 0's gradient
        if gradients.embedding is not None:
            ops.embedding_backward(
                batch.ids.reshape(-1),
                stream.dx,
                gradients.embedding,
                accumulate=accumulate or self.config.tied,
            )
        if gradients.positions is not None:
            positions_N = batch.positions.reshape(-1)
            table = gradients.positions
            ops.embedding_backward(positions_N, stream.dx, table, accumulate=accumulate)

    # ---- inference

    def first_logits(self, normed_ND: Array, out: Array = None) -> Array:
        """Logits of head 0, (N, V), in a new array or in `out` of `heads.rows` columns."""
        return self.heads.first_logits(self.weights.first_head, normed_ND, out)

    def further_logits(self, normed_ND: Array, count: int) -> Array:
        """Logits of the heads 1 … count, (N, count, V): guesses at the tokens behind the next."""
        return self.heads.further_logits(self.weights.heads, normed_ND, count)

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        return self.caches.new(rows, capacity)
