"""Log-likelihoods of continuations in their contexts, many at a time.

    log p(continuation | context) = Σ over its tokens of log p(token | everything before it)

Context and continuation are encoded together and split after the tokens that the context has alone;
white space at the context's end belongs to the continuation. lm-evaluation-harness does the same.
`</s>` comes first, as before every document in training. A sequence longer than the window loses
tokens on its left, `</s>` first.

Several sequences share a row of the window's length and do not see each other (per-document
attention), so there is little padding. Logits are computed only for the continuations' tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler.backend.records import LogitRows
from nanoeuler.model.likelihood import BATCH_TOKENS, Share, in_order
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.records import pack


@dataclass(frozen=True)
class Pair:
    """A context with its continuation, as token ids."""

    ids: np.ndarray  # int32 (tokens,), `</s>` first
    scored: int  # the number of tokens, at the end, that are the continuation

    def inputs(self, window: int) -> int:
        """The number of tokens that are read: all but the last, if the window holds them."""
        return min(len(self.ids) - 1, window)


def encode(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """`continuation` starts with its space, if any. Raises ValueError when it has no token."""
    alone = tokenizer.encode(context.rstrip())
    both = tokenizer.encode(context + continuation)
    if len(both) <= len(alone):
        raise ValueError(f"the continuation {continuation!r} has no token of its own")
    ids = np.concatenate([np.array([tokenizer.end_id], np.int32), both])
    return Pair(ids, scored=len(both) - len(alone))


@dataclass(frozen=True)
class PackedBatch:
    """Rows of sequences, and the R flat offsets where a continuation's token is predicted."""

    ids_BT: np.ndarray  # int32
    positions_BT: np.ndarray  # int32
    starts_BT: np.ndarray  # int32
    offsets_R: np.ndarray  # into the B·T tokens
    targets_R: np.ndarray  # the token that comes next there
    owners_R: np.ndarray  # the index of its sequence


def log_likelihoods(
    model: Transformer,
    sequences: Sequence[Pair],
    window: int,
    end_id: int,
    advance: Callable[[int], None] | None = None,
    share: Share = in_order,
) -> tuple[np.ndarray, np.ndarray]:
    """The log-likelihood of each sequence's continuation in nats, float64 (S,), and whether every
    token of it was the likeliest, bool (S,).

    No continuation may be longer than `window`. `advance` is told how many sequences each forward
    pass has scored. `share` may let other ranks compute some of the passes.
    """
    sums_S, greedy_S = np.zeros(len(sequences)), np.ones(len(sequences), bool)
    lengths = [sequence.inputs(window) for sequence in sequences]
    packed = pack(lengths, window)
    if not packed:
        return sums_S, greedy_S
    length = max(sum(lengths[index] for index in row) for row in packed)
    batches = -(-len(packed) // max(1, BATCH_TOKENS // window))
    size = -(-len(packed) // batches)  # batches of equal size: the model allocates its buffers once
    passes = [packed[first : first + size] for first in range(0, len(packed), size)]

    def work(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch = lay_out(sequences, passes[number], (size, length), window, end_id)
        return batch.owners_R, *score(model, batch)

    scored = share(len(passes), work)
    for rows, (owners_R, logprobs_R, hits_R) in zip(passes, scored, strict=True):
        np.add.at(sums_S, owners_R, logprobs_R)
        np.logical_and.at(greedy_S, owners_R, hits_R)
        if advance:
            advance(sum(map(len, rows)))
    return sums_S, greedy_S


def lay_out(
    sequences: Sequence[Pair],
    rows: Sequence[Sequence[int]],
    shape: tuple[int, int],
    window: int,
    end_id: int,
) -> PackedBatch:
    """A batch of `shape` (B, T) from rows of indices; a row's rest is a document of its own."""
    length = shape[1]
    ids_BT = np.full(shape, end_id, np.int32)
    starts_BT = np.zeros(shape, np.int32)
    offsets, targets, owners = [], [], []
    for row, indices in enumerate(rows):
        start = 0
        for index in indices:
            sequence = sequences[index]
            stop = start + sequence.inputs(window)
            kept = sequence.ids[-(stop - start + 1) :]
            ids_BT[row, start:stop] = kept[:-1]
            starts_BT[row, start:stop] = start
            offsets.append(row * length + np.arange(stop - sequence.scored, stop))
            targets.append(kept[len(kept) - sequence.scored :])
            owners.append(np.full(sequence.scored, index))
            start = stop
        starts_BT[row, start:] = start
    return PackedBatch(
        ids_BT,
        np.arange(length, dtype=np.int32) - starts_BT,
        starts_BT,
        np.concatenate(offsets),
        np.concatenate(targets),
        np.concatenate(owners),
    )


def score(model: Transformer, batch: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """The log-probability of each target by head 0, and whether it is the likeliest; (R,) each."""
    ops = model.backend
    inputs = Batch(*map(ops.from_host, (batch.ids_BT, batch.positions_BT, batch.starts_BT)))
    hidden_ND = model.forward(inputs).stream.normed
    total = len(batch.targets_R)
    logprobs_R, hits_R = np.empty(total), np.empty(total, bool)
    size = max(1, ops.scored_logits_at_once // model.heads.rows)
    for start in range(0, total, size):
        part = slice(start, min(start + size, total))
        count = part.stop - part.start
        targets_R = batch.targets_R[part]
        logits_RV = model.first_logits(ops.gather(hidden_ND, batch.offsets_R[part]))
        logprobs, lse = ops.empty((count,)), ops.empty((count,))
        likeliest_R = ops.to_host(ops.argmax(logits_RV))
        ops.cross_entropy(LogitRows(logits_RV, ops.from_host(targets_R), logprobs, lse))
        logprobs_R[part] = ops.to_host(logprobs)
        hits_R[part] = likeliest_R == targets_R
    return logprobs_R, hits_R
