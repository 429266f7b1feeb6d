"""How likely a model finds given continuations of given contexts: log-likelihoods, many at a time.

    log p(continuation | context) = Σ over its tokens of log p(token | everything before it)

Context and continuation are tokenised together and parted behind the tokens that the context has alone, white space at its end being
counted to the continuation: the choice of lm-evaluation-harness. In front stands `</s>`, as in front of every document in training. What is
longer than the window loses tokens on its left, `</s>` first.

Several sequences lie in one row of the window's length and do not see each other (per-document attention), so that nearly nothing is padding,
and logits are computed only where a continuation's tokens are predicted.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler.model.likelihood import BATCH_TOKENS, SLICE_ELEMENTS
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pair:
    """A context with its continuation, as token ids."""

    ids: np.ndarray  # int32 (tokens,), `</s>` first
    scored: int  # the last so many are the continuation

    def inputs(self, window: int) -> int:
        """Tokens that are read: all but the last, and no more than the window holds."""
        return min(len(self.ids) - 1, window)


def encode(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """`continuation` brings its own space at the front, if one belongs there. Raises ValueError when it has no token."""
    stripped = context.rstrip()
    before, both = tokenizer.encode(stripped), tokenizer.encode(context + continuation)
    if len(both) <= len(before):
        raise ValueError(f"the continuation {continuation!r} has no token of its own")
    return Pair(
        np.concatenate([np.array([tokenizer.end_id], np.int32), both]), len(both) - len(before)
    )


def pack(lengths: Sequence[int], window: int) -> list[list[int]]:
    """Rows of indices into `lengths`, none summing to more than `window`: best fit, longest first (of equals the first)."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = bisect.bisect_left(free, (lengths[index], 0))
        if place < len(free):
            room, row = free.pop(place)
        else:
            room, row = window, len(rows)
            rows.append([])
        rows[row].append(index)
        if room > lengths[index]:
            bisect.insort(free, (room - lengths[index], row))
    return rows


def log_likelihoods(
    model: Transformer,
    sequences: Sequence[Pair],
    window: int,
    end_id: int,
    advance: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each sequence the log-likelihood of its continuation in nats, float64 (S,), and whether every token of it was the likeliest, bool (S,).

    No continuation may be longer than `window`. `advance` is told how many sequences each forward pass has scored.
    """
    sums_S, greedy_S = np.zeros(len(sequences)), np.ones(len(sequences), bool)
    packed = pack([sequence.inputs(window) for sequence in sequences], window)
    length = max(
        (sum(sequences[index].inputs(window) for index in row) for row in packed), default=0
    )
    batches = -(-len(packed) // max(1, BATCH_TOKENS // window))
    size = (
        -(-len(packed) // batches) if batches else 0
    )  # equal batches: the model plans its buffers once
    for first in range(0, len(packed), max(size, 1)):
        rows = packed[first : first + size]
        batch, places_R, targets_R, owners_R = lay_out(
            sequences, rows, size, length, window, end_id
        )
        logprobs_R, hits_R = score_places(model, batch, places_R, targets_R)
        np.add.at(sums_S, owners_R, logprobs_R)
        np.logical_and.at(greedy_S, owners_R, hits_R)
        if advance:
            advance(sum(map(len, rows)))
    return sums_S, greedy_S


def lay_out(
    sequences: Sequence[Pair],
    rows: Sequence[Sequence[int]],
    size: int,
    length: int,
    window: int,
    end_id: int,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Ids, positions and starts, (size, length) each, and the R places where a continuation's token is predicted: place in the flat batch,
    that token, and whose it is. What is left of a row is a document of its own that nobody asks about."""
    ids_BT = np.full((size, length), end_id, np.int32)
    starts_BT = np.zeros((size, length), np.int32)
    places, targets, owners = [], [], []
    for row, indices in enumerate(rows):
        place = 0
        for index in indices:
            sequence = sequences[index]
            count = sequence.inputs(window)
            kept = sequence.ids[-(count + 1) :]
            ids_BT[row, place : place + count] = kept[:-1]
            starts_BT[row, place : place + count] = place
            place += count
            places.append(row * length + np.arange(place - sequence.scored, place))
            targets.append(kept[len(kept) - sequence.scored :])
            owners.append(np.full(sequence.scored, index))
        starts_BT[row, place:] = place
    positions_BT = np.arange(length, dtype=np.int32) - starts_BT
    return (
        (ids_BT, positions_BT, starts_BT),
        np.concatenate(places),
        np.concatenate(targets),
        np.concatenate(owners),
    )


def score_places(
    model: Transformer,
    batch: tuple[np.ndarray, np.ndarray, np.ndarray],
    places_R: np.ndarray,
    targets_R: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of head 0 for the target at each place, (R,), and whether it is the likeliest token, (R,)."""
    ops = model.backend
    hidden_ND = model.forward(Batch(*map(ops.from_host, batch))).hidden
    logprobs_R, hits_R = np.empty(len(places_R)), np.empty(len(places_R), bool)
    size = max(1, SLICE_ELEMENTS // model.columns.head)
    for start in range(0, len(places_R), size):
        part = slice(start, min(start + size, len(places_R)))
        count = part.stop - part.start
        logits_RV = model.first_logits(hidden_ND[ops.from_host(places_R[part])])
        logprobs, lse = ops.empty((count,)), ops.empty((count,))
        likeliest_R = ops.to_host(logits_RV.argmax(axis=1))
        ops.cross_entropy(logits_RV, ops.from_host(targets_R[part]), logprobs, lse)
        logprobs_R[part] = ops.to_host(logprobs)
        hits_R[part] = likeliest_R == targets_R[part]
    return logprobs_R, hits_R
