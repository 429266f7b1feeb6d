"""The interface of a block, and the arguments of its forward and backward pass."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import (
    Array,
    BlockForm,
    CacheSlots,
    EulerStep,
    Norm,
    NormGradients,
    RopeTable,
    Rotation,
)
from nanoeuler.backend.runtime import Arena
from nanoeuler.model.tensors import NamedArrays, NamedViews, TensorSpec

Weights = TypeVar("Weights")
Activations = TypeVar("Activations")


@dataclass
class Rows:
    """Positions and documents of the tokens of a pass: B rows of T tokens, N = B · T."""

    positions_N: Array  # rotary positions; a fused op counts them from `offset_B`
    starts_BT: Array  # per token, the slot in its row at which its document starts
    offset_B: Array  # tokens that the cache holds in front of each row; 0 without a cache
    rope_table: RopeTable
    seeds_N: Array | None = None  # of dropout's random numbers, in training with any
    window_table: RopeTable | None = None  # of layers with a sliding window

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.positions_N, self.rope_table)


@dataclass
class StreamBuffers:
    """The arrays of a pass that all blocks work on, one block after the other."""

    normed: Array  # (N, D) output of the last norm; the next block, or the heads, read it
    dnormed: Array  # (N, D) its gradient; shares the memory of `normed`
    delta: Array  # (N, D) scratch for a block's last product
    dx: Array  # (N, D) gradient of the residual stream; shares the memory of `delta`


class BlockPass(NamedTuple):
    """A pass through one block: where it reads and writes, and what it works with."""

    rows: Rows
    norm: Norm  # in front of the block, which reads what it has written
    stream: StreamBuffers
    following: Norm  # behind it, with which a forward pass ends
    slots: CacheSlots | None = None  # of a forward pass
    accumulate: bool = False  # on the way back: gradients are added to those that are there


class Block(ABC, Generic[Weights, Activations]):
    """One forward-Euler step in depth: x ← x + h · f(norm(x)).

    A block holds no arrays. `Weights` and `Activations` are dataclasses of arrays; gradients of
    weights have the type of the weights.
    """

    form: BlockForm
    cache_shape: tuple[int, int] | None = None
    """Key/value heads and their size, for a block that keeps keys and values of past tokens."""
    recomputable = False
    """May all blocks of this kind share their activations, and `recompute` them?"""

    @abstractmethod
    def tensors(self) -> list[TensorSpec]:
        """Its parameters, in the order of the flat buffers, the norm in front first."""

    def flops(self) -> tuple[int, int]:
        """Operations of a forward pass: for each token, and for each key that a token sees.

        A multiply-add counts as two. Counted are matrix products.
        """
        matrices = (tensor.shape for tensor in self.tensors() if len(tensor.shape) > 1)
        return 2 * sum(map(math.prod, matrices)), 0

    @abstractmethod
    def weights(self, buffer: NamedViews, norms: NamedArrays) -> Weights:
        """Views of its parameters; `norms` is the buffer that holds the norm's weight."""

    @abstractmethod
    def activations(
        self,
        arena: Arena,
        ops: Backend,
        rows: int,
        length: int,
        *,
        training: bool,
        first: Activations | None,
    ) -> Activations:
        """Arrays that last from the forward pass to the backward pass, and scratch.

        `training`: there will be a backward pass. `first`: the activations of the first block of
        this kind, whose scratch all blocks share.
        """

    @abstractmethod
    def forward(self, ops: Backend, weights: Weights, saved: Activations, p: BlockPass) -> None:
        """From `norm.out` to the stream behind the block, and on to the norm that follows it.

        With `slots` the block appends keys and values to them and reads all that they hold.
        """

    @abstractmethod
    def backward(
        self, ops: Backend, weights: Weights, gradients: Weights, saved: Activations, p: BlockPass
    ) -> None:
        """From `stream.dx` behind the block to `stream.dx` in front of it, and `gradients`."""

    def recompute(self, ops: Backend, weights: Weights, saved: Activations, norm: Norm) -> None:
        """Recompute activations that `recomputable` blocks of this kind share; for these alone."""
        raise NotImplementedError

    @abstractmethod
    def step(self, ops: Backend, weights: Weights, saved: Activations, out: Array) -> None:
        """out = f(norm(x)) of the last forward pass."""

    def backward_input(
        self,
        ops: Backend,
        dproduct: Array,
        weight: Array,
        dweight: Array,
        dnorm_weight: Array,
        p: BlockPass,
        dbias: Array | None = None,
        dnorm_bias: Array | None = None,
    ) -> None:
        """Through the block's first product and the norm in front of it.

        The norm's output is computed again, since the weight's gradient needs it.
        """
        stream, accumulate = p.stream, p.accumulate
        ops.linear_backward_input(dproduct, weight, stream.dnormed)
        gradients = stream.dx, dnorm_weight, dnorm_bias
        into = NormGradients(
            *gradients, add_to_dx=True, accumulate=accumulate, out_ND=stream.normed
        )
        ops.norm_backward(stream.dnormed, p.norm, into)
        arrays = dproduct, stream.normed, dweight
        if dbias is None:
            ops.linear_backward_weight(*arrays, accumulate=accumulate)
        else:
            ops.linear_bias_backward(*arrays, dbias, accumulate=accumulate)


class Mlp(Block[Weights, Activations]):
    """x ← x + h · down(hidden), where `inner` makes `hidden` from the normed stream.

    Weights have `down` and maybe `down_bias`, activations have `hidden`.
    """

    recomputable = True

    @abstractmethod
    def inner(self, ops: Backend, weights: Weights, saved: Activations, normed: Array) -> None:
        """From the normed input to `saved.hidden`, and what the backward pass needs beside it."""

    def forward(self, ops: Backend, weights: Any, saved: Any, p: BlockPass) -> None:
        self.inner(ops, weights, saved, p.norm.out_ND)
        bias = getattr(weights, "down_bias", None)
        step = EulerStep(p.norm.x_ND, p.stream.delta, self.form.step_size, p.following, bias)
        ops.euler_step(saved.hidden, weights.down, step)

    def recompute(self, ops: Backend, weights: Any, saved: Any, norm: Norm) -> None:
        ops.norm(norm)
        self.inner(ops, weights, saved, norm.out_ND)
