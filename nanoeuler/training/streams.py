"""The rows of each step, of pure streams as a function of (seed, stream, step).

A resumed run therefore has nothing to replay. An epoch visits every row once, in an order drawn
from a counter-based generator whose key is the seed, the stream and the epoch.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.documents import TokenSlices, frame, mask_padding, windows
from nanoeuler.model.spec import training_flops

if TYPE_CHECKING:
    from nanoeuler.model.transformer import Transformer


@dataclass
class StepRows:
    """All rows of one optimizer step, on the host; micro-batches are slices of them."""

    ids: np.ndarray  # (R, T) int32
    positions: np.ndarray  # (R, T) int32
    starts: np.ndarray  # (R, T) int32
    targets: np.ndarray  # (R, T, K) int32, −1: no loss
    weights: np.ndarray  # (R, T, K) float32; they sum to 1, or are 0 if the objective finds them
    further: tuple[np.ndarray, ...] = ()  # other inputs of the stage's objective, each (R, …)
    seeds: np.ndarray | None = None  # (R, T) int32, of the random numbers of dropout, if any
    notes: dict[str, float] = field(default_factory=dict)  # what was measured of them, for people

    @property
    def tokens(self) -> int:
        return self.ids.size

    @property
    def arrays(self) -> list[np.ndarray]:
        own = [self.ids, self.positions, self.starts, self.targets, self.weights]
        return [*own, *self.further, *([] if self.seeds is None else [self.seeds])]

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> "StepRows":
        """The rows with every array changed alike."""
        ids, positions, starts, targets, weights, *others = map(change, self.arrays)
        seeds = None if self.seeds is None else others.pop()
        return StepRows(ids, positions, starts, targets, weights, tuple(others), seeds)

    def padded(self, multiple: int) -> "StepRows":
        """These rows and empty ones (weight 0, no target), a multiple of `multiple` in all."""
        missing = -len(self.ids) % multiple
        if not missing:
            return self
        rows = self.each(lambda array: np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)]))
        rows.targets[len(self.ids) :] = -1
        return rows

    def share(self, rank: int, ranks: int) -> "StepRows":
        """Part `rank` of `ranks` equal ones."""
        rows = len(self.ids) // ranks
        return self if ranks == 1 else self.chosen(slice(rank * rows, (rank + 1) * rows))

    def chosen(self, which: slice | np.ndarray) -> "StepRows":
        """Some of the rows."""
        return self.each(lambda array: np.ascontiguousarray(array[which]))

    def training_flops(self, config: ModelConfig) -> float:
        """Floating-point operations that these rows need.

        Attention counts within each document, the heads count where a token has a target, and
        padding does not count (except its first token).
        """
        offsets = np.arange(self.positions.shape[1]) - self.starts
        real = self.positions == offsets  # padding stays at position 0
        return training_flops(
            config,
            float(real.sum()),
            float((self.positions + 1)[real].sum()),
            float((self.targets >= 0).any(axis=2).sum()),
        )


class Stream(Protocol):
    """A source of rows of one length."""

    length: int
    rows_per_step: int
    row_count: int  # in an epoch
    pure: bool
    """Whether its rows are a function of the step alone, so that the host may make those of the
    next step while the device computes."""

    def rows(self, step: int, model: "Transformer | None" = None) -> StepRows:
        """The rows of a step. `model` has the weights before that step, on every rank; a stream
        that is pure does without."""


def steps_in(epochs: float, stream: Stream) -> int:
    """The number of steps in which `epochs` of `stream` are seen."""
    return math.ceil(epochs * stream.row_count / stream.rows_per_step)


def generator(seed: int, stream: str, number: int) -> np.random.Generator:
    """Random numbers of an epoch or a step of `stream`."""
    # an array, because a list with a number above 2⁶³ would become float64 and lose the number
    key = np.array([seed, zlib.crc32(stream.encode()) << 32 | number], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def row_order(seed: int, stream: str, epoch: int, rows: int) -> np.ndarray:
    """The order in which epoch `epoch` of `stream` visits its rows."""
    return generator(seed, stream, epoch).permutation(rows)


def dropout_seeds(seed: int, stream: str, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """What dropout's random numbers of each token of a step are made of, int32."""
    words = generator(seed, stream, step).integers(2**32, size=shape)
    return words.astype(np.uint32).view(np.int32)


class RowOrder:
    """Row numbers of consecutive steps; remembers the order of the epochs in use."""

    def __init__(self, seed: int, stream: str, rows: int, rows_per_step: int):
        self.seed, self.stream, self.rows, self.rows_per_step = seed, stream, rows, rows_per_step
        self.orders: dict[int, np.ndarray] = {}

    def step(self, step: int) -> np.ndarray:
        visits = np.arange(step * self.rows_per_step, (step + 1) * self.rows_per_step)
        epochs, offsets = visits // self.rows, visits % self.rows
        self.orders = {
            epoch: self.orders[epoch]
            if epoch in self.orders
            else row_order(self.seed, self.stream, epoch, self.rows)
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
        }
        return np.array(
            [self.orders[int(epoch)][offset] for epoch, offset in zip(epochs, offsets, strict=True)]
        )


def loss_weights(
    targets_RTK: np.ndarray, mtp_weights: tuple[float, ...], importance_RT: np.ndarray | None = None
) -> np.ndarray:
    """Weights (R, T, K) that make the loss a mean over each head's targets, times its share.

    `importance` weighs the targets of the mean. The weights sum to 1 over the step: a head without
    any target in the step leaves its share to the others.
    """
    importance_RTK = (targets_RTK >= 0) * (
        1.0 if importance_RT is None else importance_RT[..., None]
    )
    totals_K = importance_RTK.sum(axis=(0, 1))
    shares_K = np.where(totals_K > 0, mtp_weights, 0.0)
    shares_K = shares_K / max(shares_K.sum(), 1e-30)
    per_target_K = (shares_K / np.where(totals_K > 0, totals_K, 1.0)).astype(np.float32)
    return (importance_RTK * per_target_K).astype(np.float32)


class TextStream:
    """Rows of `length` tokens cut from one long sequence.

    In an epoch every token is once a target of head 0. The rows are the same with documents left
    out, whose tokens, [first, stop) of each in `without`, are then neither seen nor targets. In the
    steps before `short_rows_until`, attention sees no further back than the part of a row that a
    token is in: an eighth in the first third of them, then a quarter, then a half (Press et al.
    2021, *Shortformer*, who train on short rows first).
    """

    pure = True

    def __init__(
        self,
        sequence: TokenSlices,
        length: int,
        batch_tokens: int,
        mtp_weights: tuple[float, ...],
        end_id: int,
        document_mask: bool,
        seed: int,
        name: str,
        without: Sequence[tuple[int, int]] = (),
        short_rows_until: int = 0,
    ):
        self.sequence, self.length, self.mtp_weights = sequence, length, mtp_weights
        self.without, self.short_rows_until = without, short_rows_until
        self.end_id, self.document_mask = end_id, document_mask
        self.row_count = -(-len(sequence) // length)
        self.rows_per_step = max(1, batch_tokens // length)
        self.order = RowOrder(seed, name, self.row_count, self.rows_per_step)

    def rows(self, step: int, model: "Transformer | None" = None) -> StepRows:
        heads, end_id = len(self.mtp_weights), self.end_id
        index_R = self.order.step(step)
        ids, following, counts = windows(self.sequence, index_R, self.length, heads, end_id)
        left_out = self.left_out(index_R)
        ids[left_out] = end_id
        positions, starts, targets = frame(ids, following, end_id, self.document_mask)
        if step < self.short_rows_until:
            parts = 8 >> 3 * step // self.short_rows_until
            offset_T, part = np.arange(self.length, dtype=np.int32), -(-self.length // parts)
            starts = np.maximum(starts, offset_T // part * part)
            positions = offset_T - starts
        mask_padding(targets, counts)
        targets[left_out] = -1
        return StepRows(ids, positions, starts, targets, loss_weights(targets, self.mtp_weights))

    def left_out(self, index_R: np.ndarray) -> np.ndarray:
        """Which tokens (R, T) of some rows are of documents that are left out."""
        token_RT = index_R[:, None] * self.length + np.arange(self.length)
        found = np.zeros(token_RT.shape, bool)
        for first, stop in self.without:
            found |= (first <= token_RT) & (token_RT < stop)
        return found
