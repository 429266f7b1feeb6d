"""Positions, document borders and the targets of K heads for rows of tokens.

Every document starts with `</s>`; the target of its last token is the next document's `</s>`, so
`</s>` also ends a document. Head k at offset t predicts the token at t + k + 1. Its target is −1
(no loss) when a `</s>` lies between them, since the next document cannot be predicted.
"""

from typing import Protocol

import numpy as np


class TokenSlices(Protocol):
    """Token ids that are read by slices: an array, or the shards of a `TokenStore`."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: slice, /) -> np.ndarray: ...


def frame(
    ids_BT: np.ndarray, following_BK: np.ndarray, end_id: int, document_mask: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (B, T), starts (B, T) and targets (B, T, K) of rows, all int32.

    `following_BK` holds the K tokens behind each row (`end_id` beyond the end of the text). With
    `document_mask` a token's document starts at the last `</s>` up to it in its row, or at the
    row's start; positions count from there, and attention sees no further back. Without it the row
    is one document. The targets are the same either way.
    """
    B, T = ids_BT.shape
    K = following_BK.shape[1]
    offset_T = np.arange(T, dtype=np.int32)
    starts_BT = np.zeros((B, T), np.int32)
    if document_mask:
        np.maximum.accumulate(np.where(ids_BT == end_id, offset_T, 0), axis=1, out=starts_BT)
    tokens = np.concatenate([ids_BT, following_BK], axis=1)  # (B, T + K)
    targets_BTK = np.empty((B, T, K), np.int32)
    ended_BT = np.zeros((B, T), bool)
    for head in range(K):
        target_BT = tokens[:, head + 1 : head + 1 + T]
        targets_BTK[:, :, head] = np.where(ended_BT, -1, target_BT)
        ended_BT |= target_BT == end_id
    return offset_T - starts_BT, starts_BT, targets_BTK


def windows(
    sequence: TokenSlices, index_R: np.ndarray, length: int, heads: int, end_id: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Non-overlapping windows of a token sequence: window i is tokens [i·length, (i+1)·length).

    Returns for the windows `index_R` their ids (R, length), the ids that follow (R, heads), and
    how many ids of each row are real, (R,): the last window is padded with `end_id`.
    """
    total = len(sequence)
    tokens = np.full((len(index_R), length + heads), end_id, np.int32)
    counts = np.empty(len(index_R), np.int32)
    for row, index in enumerate(index_R):
        start = int(index) * length
        part = sequence[start : min(start + length + heads, total)]
        tokens[row, : len(part)] = part
        counts[row] = min(length, total - start)
    return tokens[:, :length], tokens[:, length:], counts


def mask_padding(targets_BTK: np.ndarray, counts_B: np.ndarray) -> None:
    """Set the targets of the padding of `windows` to −1, in the array itself."""
    targets_BTK[np.arange(targets_BTK.shape[1]) >= counts_B[:, None]] = -1
