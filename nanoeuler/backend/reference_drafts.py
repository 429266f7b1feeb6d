"""The specification of drafts: which tokens are guessed, and which guesses are right.

The ops of `ChoosingBackend` that its engines are compared with, in plain NumPy.
"""

import numpy as np

from nanoeuler.backend.capabilities import LEAST_REPEATED, MOST_REPEATED, NOT_KEPT
from nanoeuler.backend.records import DraftRows

Array = np.ndarray


def lay_out_drafts(
    rows: DraftRows,
    drafted_BH: Array,
    text_BS: Array,
    ids_BT: Array,
    positions_BT: Array,
    counters_BT: Array,
) -> None:
    """A row's T = 1 + M new tokens: `tokens` and M drafts, also to its `text` from slot
    `lengths` on.

    The drafts repeat the text, or else are the H drafted by heads, with 0 behind them.
    """
    tokens_B, drafts_BM, lengths_B, draws_B = rows
    T, H = ids_BT.shape[1], drafted_BH.shape[1]
    drafts_BM[:, :H], drafts_BM[:, H:] = drafted_BH, 0
    for b, length in enumerate(lengths_B):
        text_BS[b, length] = tokens_B[b]
        found = repeated(text_BS[b, : length + 1], T - 1)
        drafts_BM[b, : len(found)] = found
        text_BS[b, length + 1 : length + T] = drafts_BM[b]
    ids_BT[:, 0], ids_BT[:, 1:] = tokens_B, drafts_BM
    steps_T = np.arange(T)
    positions_BT[...] = lengths_B[:, None] + steps_T
    counters_BT[...] = draws_B[:, None] + steps_T


def repeated(text_N: Array, count: int) -> Array:
    """Tokens that followed the last occurrence of the last three tokens, else of the last two.

    `count` tokens; where the text ends before, it goes on from that place. None if they never
    did.
    """
    N = len(text_N)
    for length in range(min(MOST_REPEATED, N - 1), LEAST_REPEATED - 1, -1):
        places = np.lib.stride_tricks.sliding_window_view(text_N[:-1], length)
        found = np.flatnonzero((places == text_N[N - length :]).all(axis=1))
        if len(found):
            start = found[-1] + length
            return text_N[start + np.arange(count) % (N - start)]
    return text_N[:0]


def accept_drafts(chosen_BT: Array, x_ND: Array, rows: DraftRows, last_BD: Array) -> None:
    """Verify drafts: accept the longest correct prefix and the token after it.

    `chosen[b, t]` was sampled behind `drafts[b, t − 1]` and those in front of it; `drafts[b,
    t]` guessed it. The first r drafts of a row are right, so r + 1 tokens are accepted, and −2
    replaces the others. `tokens` becomes the last one accepted, or 0 where that is −1 (its
    logits were not finite); `last` its row of x, which has T rows for each b. `lengths` and
    `draws` grow by the tokens accepted.
    """
    tokens_B, drafts_BM, lengths_B, draws_B = rows
    B, T = chosen_BT.shape
    right_B = np.cumprod(chosen_BT[:, :-1] == drafts_BM, axis=1).sum(axis=1)
    tokens_B[...] = np.maximum(chosen_BT[np.arange(B), right_B], 0)
    lengths_B += right_B + 1
    draws_B += right_B + 1
    last_BD[...] = x_ND[np.arange(B) * T + right_B]
    chosen_BT[np.arange(T) > right_B[:, None]] = NOT_KEPT
