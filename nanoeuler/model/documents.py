"""From rows of tokens to what the model is asked: positions, document borders, and the targets of K heads.

Every document starts with `</s>`; the target of its last token is the next document's `</s>`, so `</s>` also ends. Head k
at place t predicts the token at t + k + 1; its target is −1 (no loss) when a `</s>` lies between them, since what a next
document holds cannot be known.
"""

import numpy as np


def frame(
    ids_BT: np.ndarray, following_BK: np.ndarray, end_id: int, document_mask: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (B, T), starts (B, T) and targets (B, T, K) of rows, all int32.

    `following` holds the K tokens behind each row (`end_id` beyond the end of the text). With `document_mask` a token's
    document starts at the last `</s>` up to it in its row (or at the row's start), positions count from there, and
    attention sees no further back; without, the row is one document. Targets are the same either way.
    """
    B, T = ids_BT.shape
    K = following_BK.shape[1]
    place_T = np.arange(T, dtype=np.int32)
    starts_BT = np.zeros((B, T), np.int32)
    if document_mask:
        np.maximum.accumulate(np.where(ids_BT == end_id, place_T, 0), axis=1, out=starts_BT)
    tokens = np.concatenate([ids_BT, following_BK], axis=1)  # (B, T + K)
    targets_BTK = np.empty((B, T, K), np.int32)
    ended_BT = np.zeros((B, T), bool)
    for head in range(K):
        target_BT = tokens[:, head + 1 : head + 1 + T]
        targets_BTK[:, :, head] = np.where(ended_BT, -1, target_BT)
        ended_BT |= target_BT == end_id
    return place_T - starts_BT, starts_BT, targets_BTK


def windows(
    sequence: "np.ndarray", index_R: np.ndarray, length: int, heads: int, end_id: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Non-overlapping windows of a token sequence: rows `index_R`, each tokens [i·length, (i+1)·length).

    Returns ids (R, length), following (R, heads) and how many ids of each row are real, (R,): the last window is filled up
    with `end_id`. `sequence` is anything that slices to an integer array.
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
    """Take the targets of the filled-up places of `windows` away, in place."""
    targets_BTK[np.arange(targets_BTK.shape[1]) >= counts_B[:, None]] = -1
