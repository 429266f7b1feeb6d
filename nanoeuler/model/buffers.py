"""The arrays of a pass over rows of one shape, and the memory that they take."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, LayerNorm, Norm, RmsNorm
from nanoeuler.backend.runtime import Arena, count_bytes, in_one_block
from nanoeuler.model.blocks.block import StreamBuffers
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import make_blocks
from nanoeuler.model.spec import head_columns


@dataclass
class PassBuffers:
    """All arrays of a pass over B rows of T tokens: passes of that shape allocate nothing new."""

    batch: int  # B
    length: int  # T
    points: list[Array]  # (N, D) the residual stream in front of each block, and behind the last
    inverse_rms: list[Array]  # (N,) of the norm at each of these points
    stream: StreamBuffers
    blocks: list[Any]  # the activations of each block, in its own dataclass
    no_offset: Array  # (B,) zeros: without a cache, queries and keys start together; or None
    tokens_at_once: int  # tokens whose logits exist at a time
    logits: Array  # (tokens_at_once, K · head rows); empty where no training is planned
    slopes: Array  # the same, of the caps of logits; None without any
    norms: list[Norm] = field(default_factory=list)  # of each point, set by the model


NormWeights = tuple[Array, Array | None]
"""Weight of a norm and, of a LayerNorm, its bias."""

known_blocks = functools.cache(make_blocks)
"""Made once: a pass of a new shape is often a prompt that somebody waits for."""


def lay_out_pass(
    arena: Arena,
    config: ModelConfig,
    ops: Backend,
    batch: int,
    length: int,
    *,
    training: bool,
    recompute: bool,
) -> PassBuffers:
    """Take every array of a pass from `arena`.

    With `training` each block has activations of its own, and gradients exist; without, the blocks
    of a kind share theirs. `recompute`: MLP blocks share theirs in training, too.
    """
    N, blocks = batch * length, known_blocks(config)
    first: dict[type, Any] = {}
    points: list[Array] = []
    inverse_rms: list[Array] = []
    activations: list[Any] = []

    def add_point() -> None:
        if training or len(points) < 2:
            points.append(arena.empty((N, config.dim), ops.residual))
            inverse_rms.append(arena.empty((N,), ops.dtype))
        else:
            points.append(points[-2])
            inverse_rms.append(inverse_rms[-2])

    for block in blocks:
        add_point()
        kind, shared = type(block.form), not training or (recompute and block.recomputable)
        earlier = first.get(kind)
        if earlier is None or not shared:
            activations.append(
                block.activations(arena, ops, batch, length, training=training, first=earlier)
            )
            first.setdefault(kind, activations[-1])
        else:
            activations.append(earlier)
    add_point()
    no_offset = arena.empty((batch,), np.dtype(np.int32))
    normed, dnormed = arena.overlay((N, config.dim), ops.activation)
    delta, dx = arena.overlay((N, config.dim), ops.activation)
    tokens_at_once = logit_tokens(N, config, ops) if training else 0
    shape = tokens_at_once, head_columns(config)
    logits = arena.empty(shape, ops.activation)
    slopes = arena.empty(shape, ops.activation) if config.logit_cap else None
    stream = StreamBuffers(normed, dnormed, delta, dx)
    state = points, inverse_rms, stream, activations
    return PassBuffers(batch, length, *state, no_offset, tokens_at_once, logits, slopes)


def with_norms(
    buffers: PassBuffers, config: ModelConfig, norm_weights: Sequence[NormWeights]
) -> PassBuffers:
    points = zip(buffers.points, norm_weights, buffers.inverse_rms, strict=True)
    for x, (weight, bias), inverse_rms in points:
        written = config.norm_epsilon, buffers.stream.normed, inverse_rms
        is_plain = bias is None
        norm = RmsNorm(x, weight, *written) if is_plain else LayerNorm(x, weight, bias, *written)
        buffers.norms.append(norm)
    return buffers


class KeptBuffers:
    """The buffers of a model's passes: of one shape for training, and of one for the rest."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Backend,
        norm_weights: Sequence[NormWeights],
        *,
        recompute: bool,
    ):
        self.config, self.ops, self.recompute = config, ops, recompute
        self.norm_weights = norm_weights
        self.kept: dict[bool, tuple[tuple[int, int], PassBuffers]] = {}
        self.shared: tuple[Array, Array, Array] | None = None
        """Memory of `stream`: residual stream, inverse RMS, normed residual."""

    def __call__(
        self, batch: int, length: int, *, training: bool = False, stream_only: bool = False
    ) -> PassBuffers:
        """The buffers for B rows of T tokens, or with `stream_only` those of `stream`."""
        if stream_only:
            return self.stream(batch, length)
        kept, shape = self.kept, (batch, length)
        if training not in kept or kept[training][0] != shape:
            kept.pop(training, None)  # before the next ones take memory

            def lay_out(arena: Arena) -> PassBuffers:
                how = {"training": training, "recompute": self.recompute}
                return lay_out_pass(arena, self.config, self.ops, *shape, **how)

            buffers = in_one_block(lay_out, self.ops)
            kept[training] = shape, with_norms(buffers, self.config, self.norm_weights)
        return kept[training][1]

    def stream(self, batch: int, length: int) -> PassBuffers:
        """The residual stream of a pass without training, before the first block and after the
        last, for an engine's op that computes all blocks.

        All such passes share its memory.
        """
        N, ops, dim = batch * length, self.ops, self.config.dim
        if self.shared is None or len(self.shared[0]) < N:
            x, normed = (ops.empty((N, dim), kind) for kind in (ops.residual, ops.activation))
            self.shared = x, ops.empty((N,)), normed
        x, inverse_rms, normed = (array[:N] for array in self.shared)
        stream, points = StreamBuffers(normed, None, None, None), ([x] * 2, [inverse_rms] * 2)
        buffers = PassBuffers(batch, length, *points, stream, [], None, 0, None, None)
        return with_norms(buffers, self.config, (self.norm_weights[0], self.norm_weights[-1]))


FROZEN_PARTS = 4
"""Frozen heads add up no gradients over parts, so that they may take fewer tokens at once."""


def logit_tokens(tokens: int, config: ModelConfig, ops: Backend) -> int:
    """How many of a pass's tokens the heads take at once: all, or parts of equal size."""
    most = ops.logits_at_once // (FROZEN_PARTS if config.lora else 1)
    parts = -(-tokens * head_columns(config) // most)
    if parts == 1:
        return tokens
    return min(tokens, max(ops.least_logit_tokens, round_up(-(-tokens // parts), 128)))


def training_pass_bytes(
    config: ModelConfig, ops: Backend, rows: int, length: int, *, recompute: bool = False
) -> int:
    """Bytes that a training step takes for a micro-batch, beside its training state.

    The buffers of the pass, the inputs with the log-probability and log-sum-exp of each target,
    and what the ops themselves take.
    """

    def lay_out(arena: Arena) -> PassBuffers:
        return lay_out_pass(arena, config, ops, rows, length, training=True, recompute=recompute)

    inputs = rows * length * 4 * (3 + 4 * config.mtp_heads)
    return count_bytes(lay_out) + inputs + rows * ops.workspace_bytes(config.heads, length)


def scoring_pass_bytes(config: ModelConfig, ops: Backend, rows: int, length: int) -> int:
    """Bytes of the buffers of a pass without training, but for the logits."""

    def lay_out(arena: Arena) -> PassBuffers:
        return lay_out_pass(arena, config, ops, rows, length, training=False, recompute=False)

    return count_bytes(lay_out)


def rows_within(
    config: ModelConfig, ops: Backend, length: int, budget: int, *, recompute: bool = False
) -> int:
    """The most rows of a micro-batch that `budget` bytes hold; 0 where not even one fits."""
    fits = 0
    step = 1
    while training_pass_bytes(config, ops, fits + step, length, recompute=recompute) <= budget:
        fits += step
        step *= 2
    while step := step // 2:
        if training_pass_bytes(config, ops, fits + step, length, recompute=recompute) <= budget:
            fits += step
    return fits
