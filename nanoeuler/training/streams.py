"""What a step trains on, as a pure function of (seed, stream, step): nothing has to be replayed after a resume.

An epoch visits every row once, in an order drawn from a counter-based generator keyed by the seed, the stream and the epoch.
"""

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.documents import frame, mask_padding, windows
from nanoeuler.model.spec import training_flops


@dataclass
class StepRows:
    """All rows of one optimizer step, on the host; micro-batches are slices of them."""

    ids: np.ndarray  # (R, T) int32
    positions: np.ndarray  # (R, T) int32
    starts: np.ndarray  # (R, T) int32
    targets: np.ndarray  # (R, T, K) int32, −1: no loss
    weights: (
        np.ndarray
    )  # (R, T, K) float32, summing to 1 over the step; zeros where the objective is to find them
    further: tuple[np.ndarray, ...] = ()  # what else the stage's objective needs, each (R, …)

    @property
    def tokens(self) -> int:
        return self.ids.size

    def training_flops(self, config: ModelConfig) -> float:
        """What has to be computed: attention within each document, heads where a token has a target, nothing for padding but its first token."""
        real = (
            self.positions == np.arange(self.positions.shape[1]) - self.starts
        )  # padding stays at position 0
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
    rows: int

    def step(self, step: int) -> StepRows: ...


def row_order(seed: int, stream: str, epoch: int, rows: int) -> np.ndarray:
    """The order in which epoch `epoch` of `stream` visits its rows."""
    key = np.array(
        [seed, zlib.crc32(stream.encode()) << 32 | epoch], np.uint64
    )  # a list above 2⁶³ would become float64 and lose the epoch
    return np.random.Generator(np.random.Philox(key=key)).permutation(rows)


class RowOrder:
    """Row numbers of consecutive steps; remembers the order of the epochs in use."""

    def __init__(self, seed: int, stream: str, rows: int, rows_per_step: int):
        self.seed, self.stream, self.rows, self.rows_per_step = seed, stream, rows, rows_per_step
        self.orders: dict[int, np.ndarray] = {}

    def step(self, step: int) -> np.ndarray:
        visits = np.arange(step * self.rows_per_step, (step + 1) * self.rows_per_step)
        epochs, places = visits // self.rows, visits % self.rows
        needed = range(int(epochs[0]), int(epochs[-1]) + 1)
        self.orders = {epoch: self.orders.get(epoch, None) for epoch in needed}
        for epoch in needed:
            if self.orders[epoch] is None:
                self.orders[epoch] = row_order(self.seed, self.stream, epoch, self.rows)
        return np.array(
            [self.orders[int(epoch)][place] for epoch, place in zip(epochs, places, strict=True)]
        )


def loss_weights(
    targets_RTK: np.ndarray, mtp_weights: tuple[float, ...], importance_RT: np.ndarray | None = None
) -> np.ndarray:
    """Weights of the targets: the mean over head k's targets (weighted by `importance`), times that head's share. They sum to 1 over the step.

    A head without any target in the step leaves its share to the others.
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
    """Rows of `length` tokens cut from one long sequence: every token is a target of head 0 once an epoch."""

    def __init__(
        self,
        sequence: np.ndarray,
        length: int,
        batch_tokens: int,
        mtp_weights: tuple[float, ...],
        end_id: int,
        document_mask: bool,
        seed: int,
        name: str,
    ):
        self.sequence, self.length, self.mtp_weights = sequence, length, mtp_weights
        self.end_id, self.document_mask = end_id, document_mask
        self.rows = -(-len(sequence) // length)
        self.rows_per_step = max(1, batch_tokens // length)
        self.order = RowOrder(seed, name, self.rows, self.rows_per_step)

    def step(self, step: int) -> StepRows:
        ids, following, counts = windows(
            self.sequence, self.order.step(step), self.length, len(self.mtp_weights), self.end_id
        )
        positions, starts, targets = frame(ids, following, self.end_id, self.document_mask)
        mask_padding(targets, counts)
        return StepRows(ids, positions, starts, targets, loss_weights(targets, self.mtp_weights))
