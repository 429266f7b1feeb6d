"""How well a model predicts held-out text.

Measured are the bits per byte, and how often each of the K heads is right.

    bits per byte = nats / (ln 2 · UTF-8 bytes of the text)

The nats are those of head 0, summed over all tokens, `</s>` included. The unit does not
depend on the tokenizer, so that models of different vocabularies can be compared.

The text is read in windows that do not overlap: window w holds the tokens [w·T, (w+1)·T) and
predicts the successor of each; the successor of the text's last token is `</s>`. So every token but
the very first `</s>` is predicted exactly once, and so is the end of the text.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from nanoeuler.backend.records import LogitRows
from nanoeuler.model.documents import TokenSlices, frame, mask_padding, windows
from nanoeuler.model.transformer import Batch, Transformer

if TYPE_CHECKING:
    from nanoeuler.tokenizer import Tokenizer

BATCH_TOKENS = 8192
"""Tokens of one forward pass, by default."""

Value = TypeVar("Value")


class Share(Protocol):
    """Gives compute(0) … compute(count − 1) in order, whoever computes them."""

    def __call__(self, count: int, compute: Callable[[int], Value]) -> Iterable[Value]: ...


def in_order(count: int, compute: Callable[[int], Value]) -> Iterable[Value]:
    """All of them here, each when it is asked for."""
    return map(compute, range(count))


@dataclass(frozen=True)
class HeldOutScore:
    """The sums that `bits_per_byte` measures."""

    nats: float  # of head 0
    tokens: int  # targets of head 0
    text_bytes: int  # UTF-8 bytes that these targets stand for
    hits: tuple[int, ...]  # per head: targets that were its likeliest token
    targets: tuple[int, ...]  # per head: targets that it had

    @property
    def bits_per_byte(self) -> float:
        return self.nats / (math.log(2) * self.text_bytes)

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Share of each head's targets that it ranked first.

        Head k's targets lie k + 1 tokens ahead, in the same document.
        """
        pairs = zip(self.hits, self.targets, strict=True)
        return tuple(hits / max(targets, 1) for hits, targets in pairs)


def token_byte_lengths(tokenizer: "Tokenizer") -> np.ndarray:
    """UTF-8 bytes that each id stands for, (vocab_size,) int32; special tokens stand for none."""
    ids = range(tokenizer.vocab_size)
    lengths = [0 if tokenizer.is_special(id) else len(tokenizer.token_bytes(id)) for id in ids]
    return np.array(lengths, np.int32)


def added_spaces(tokenizer: "Tokenizer", ids_BT: np.ndarray, targets_BT: np.ndarray) -> int:
    """How many documents begin among the targets with a space that the tokenizer put there."""
    if not tokenizer.adds_space:
        return 0
    firsts = targets_BT[(ids_BT == tokenizer.end_id) & (targets_BT >= 0)].tolist()
    return sum(
        tokenizer.token_bytes(id).startswith(b" ") for id in firsts if id != tokenizer.end_id
    )


def bits_per_byte(
    model: Transformer,
    sequence: TokenSlices,
    text_bytes: int,
    tokenizer: "Tokenizer",
    document_mask: bool,
    limit_tokens: int | None = None,
    batch_rows: int | None = None,
    heads: int = 1,
    window: int | None = None,
    advance: Callable[[int], None] | None = None,
    share: Share = in_order,
) -> HeldOutScore:
    """Score `sequence`, which holds at least one token.

    `text_bytes`: UTF-8 bytes of its text. `limit_tokens`: score only as many whole windows as that
    many tokens make (at least one), spread evenly over the text; the bytes are then those of their
    targets. `heads`: how many heads have their accuracy measured. `window`: T, by default the
    model's context. `advance` is called with the tokens that each forward pass has scored. `share`
    may let other ranks compute some of the passes; the sums have the same bits.
    """
    T, end_id = window or model.config.context, tokenizer.end_id
    total_windows = -(-len(sequence) // T)
    limit = None if limit_tokens is None else max(1, limit_tokens // T)
    index_W = chosen_windows(total_windows, limit)
    byte_lengths_V = None if len(index_W) == total_windows else token_byte_lengths(tokenizer)
    # equal batches: the model lays out its buffers once, and little is padded
    batches = -(-len(index_W) // (batch_rows or max(1, BATCH_TOKENS // T)))
    rows = -(-len(index_W) // batches)

    def score(number: int) -> tuple[float, int, int, np.ndarray, np.ndarray]:
        """Nats, targets and their bytes, and each head's hits and targets in a batch."""
        index_B = index_W[number * rows : (number + 1) * rows]
        ids_BT, following_BK, length_B = windows(sequence, index_B, T, heads, end_id)
        positions_BT, starts_BT, targets_BTK = frame(ids_BT, following_BK, end_id, document_mask)
        mask_padding(targets_BTK, length_B)
        targets_NK = targets_BTK.reshape(-1, heads)
        missing = rows - len(index_B)  # of the last batch, which is filled up
        padded = [np.pad(x, ((0, missing), (0, 0))) for x in (ids_BT, positions_BT, starts_BT)]
        batch = Batch(*map(model.backend.from_host, padded))
        batch_nats, batch_hits_K = score_batch(model, batch, targets_NK)
        scored = targets_NK[targets_NK[:, 0] >= 0, 0]
        batch_bytes = 0
        if byte_lengths_V is not None:
            batch_bytes = int(byte_lengths_V[scored].sum())
            batch_bytes -= added_spaces(tokenizer, ids_BT, targets_BTK[:, :, 0])
        return batch_nats, len(scored), batch_bytes, batch_hits_K, (targets_NK >= 0).sum(axis=0)

    nats = 0.0
    tokens = scored_bytes = 0
    hits_K, counts_K = np.zeros(heads, np.int64), np.zeros(heads, np.int64)
    for batch_nats, batch_tokens, batch_bytes, batch_hits_K, batch_counts_K in share(
        -(-len(index_W) // rows), score
    ):
        nats += batch_nats
        tokens += batch_tokens
        scored_bytes += batch_bytes
        hits_K += batch_hits_K
        counts_K += batch_counts_K
        if advance:
            advance(batch_tokens)
    if byte_lengths_V is None:
        scored_bytes = text_bytes
    return HeldOutScore(
        nats, tokens, scored_bytes, tuple(hits_K.tolist()), tuple(counts_K.tolist())
    )


def chosen_windows(count: int, limit: int | None) -> np.ndarray:
    """The numbers of all `count` windows, or of `limit` of them at even distances."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.arange(limit) * count // limit


def score_batch(
    model: Transformer, batch: Batch, targets_NK: np.ndarray
) -> tuple[float, np.ndarray]:
    """Nats of head 0 and hits of each head, (K,), over the batch's first N tokens.

    Targets of −1 are not counted. The logits are computed slice by slice, so that memory does not
    grow with tokens × heads × vocabulary.
    """
    ops, head_rows = model.backend, model.heads.rows
    N, K = targets_NK.shape
    hidden_ND = model.forward(batch).stream.normed[:N]
    weight = model.weights.heads[: K * head_rows]
    size = max(1, min(N, ops.scored_logits_at_once // (K * head_rows)))
    logits = ops.empty((size, K * head_rows), ops.activation)
    logprobs_R, lse_R = ops.empty((size * K,)), ops.empty((size * K,))
    nats, hits_K = 0.0, np.zeros(K, np.int64)
    for start in range(0, N, size):
        part_NK = targets_NK[start : start + size]
        n = len(part_NK)
        ops.linear(hidden_ND[start : start + n], weight, logits[:n])
        logits_RV = logits[:n].reshape(n * K, head_rows)[:, : model.config.vocab_size]
        targets_R = ops.from_host(part_NK.reshape(-1))
        ops.cross_entropy(LogitRows(logits_RV, targets_R, logprobs_R[: n * K], lse_R[: n * K]))
        nats -= float(ops.to_host(logprobs_R[: n * K])[::K].sum(dtype=np.float64))
        hits_K += (ops.to_host(ops.argmax(logits_RV)).reshape(n, K) == part_NK).sum(axis=0)
    return nats, hits_K
