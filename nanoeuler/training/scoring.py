"""Log-probabilities of targets, by which held-out records and preference pairs are measured."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from nanoeuler.backend.records import LogitRows
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.streams import StepRows

ROWS_AT_ONCE = 8


class Rows(Protocol):
    """A stream that gives its rows by number."""

    row_count: int

    def frame_rows(self, indices: np.ndarray) -> StepRows: ...


def target_logprobs(transformer: Transformer, rows: StepRows) -> np.ndarray:
    """Log-probability of every target of head 0, (R, T); 0 where there is no target."""
    ops = transformer.backend
    targets = rows.targets[..., 0].reshape(-1)  # (R·T,)
    supervised = np.flatnonzero(targets >= 0)
    batch = Batch(*(ops.from_host(array) for array in (rows.ids, rows.positions, rows.starts)))
    hidden = ops.gather(transformer.forward(batch).stream.normed, supervised)
    logprobs, lse = ops.empty((len(supervised),)), ops.empty((len(supervised),))
    logits = transformer.first_logits(hidden)
    ops.cross_entropy(LogitRows(logits, ops.from_host(targets[supervised]), logprobs, lse))
    found = np.zeros(len(targets), ops.dtype)
    found[supervised] = ops.to_host(logprobs)
    return found.reshape(rows.ids.shape)


def all_logprobs(
    transformer: Transformer,
    stream: Rows,
    rows_at_once: int = ROWS_AT_ONCE,
    share: Share = in_order,
) -> Iterator[tuple[StepRows, np.ndarray]]:
    """All rows of `stream` in order, a few at a time, with the log-probabilities of targets.

    `share` may let other ranks compute some of them.
    """

    def part(number: int) -> StepRows:
        start = number * rows_at_once
        return stream.frame_rows(np.arange(start, min(start + rows_at_once, stream.row_count)))

    parts = -(-stream.row_count // rows_at_once)
    computed = share(parts, lambda number: target_logprobs(transformer, part(number)))
    for number, logprobs in enumerate(computed):
        yield part(number), logprobs
