"""Choose the next token from its logits: greedy, temperature, top-k, top-p.

Randomness is counter-based: the number that decides a token is a function of (seed, position)
alone. The same prompt and settings give the same text however the rows are batched, and a
continuation that is resumed draws the numbers of an uninterrupted one.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from nanoeuler.errors import UserError, brief

NOT_FINITE = (
    "the model's logits are not finite: its weights are damaged or its training diverged; "
    "take an earlier model"
)
MOST = 10**9
"""The largest temperature and top-k, far above any that changes a choice."""
STREAM = 0x73616D706C65
"""Second word of the Philox key: other stages draw other numbers from the same seed."""
DRAWS = 64
"""Positions whose random numbers are made at once."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice. Raises `UserError` for a setting out of its range."""

    temperature: float = 0.7
    """Logits are divided by it; 0 is greedy: the likeliest token, ties go to the lowest id."""
    top_k: int = 0
    """Only the k likeliest tokens are candidates; 0: all."""
    top_p: float = 0.95
    """Only the fewest candidates whose probabilities sum to at least p (nucleus sampling, Holtzman
    et al. 2020); 1: all."""
    seed: int = 1

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            whole = field in ("top_k", "seed")
            if not isinstance(value, Integral if whole else Real):
                raise UserError(
                    f"{field.replace('_', '-')} is {brief(value)}: it must be "
                    f"{'a whole number' if whole else 'a number'}"
                )
        if not 0 <= self.temperature <= MOST:
            raise UserError(
                f"temperature is {brief(self.temperature)}: it must be 0 (greedy) or above, "
                "1 samples from the model as it is"
            )
        if not 0 <= self.top_k <= MOST:
            raise UserError(
                f"top-k is {brief(self.top_k)}: it must be 0 (all tokens) "
                "or the number of likeliest tokens to choose from"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(
                f"top-p is {brief(self.top_p)}: it must be above 0 and at most 1 (all tokens)"
            )
        if not 0 <= self.seed < 2**64:
            raise UserError(
                f"seed is {brief(self.seed)}: it must be a whole number from 0 to 2**64 - 1"
            )


def at_least_one(max_tokens: int) -> int:
    """The most tokens of a reply. Raises `UserError` unless it is a whole number above 0."""
    if not isinstance(max_tokens, Integral) or max_tokens < 1:
        raise UserError(f"max-tokens is {brief(max_tokens)}: it must be at least 1")
    return max_tokens


GREEDY = Sampling(temperature=0.0)


def choose(
    logits_BV: np.ndarray,
    sampling: Sampling,
    positions_B: np.ndarray | Sequence[int],
    allowed_V: np.ndarray | None = None,
) -> np.ndarray:
    """One token id per row, (B,) int32.

    `positions_B` is the position in its sequence of each token to be chosen; `allowed_V` is True
    for the tokens that may be chosen at all (default: every one). Raises `UserError` when a row has
    no finite candidate: its model is broken.
    """
    scores_BV = np.asarray(logits_BV, np.float64)
    if allowed_V is not None:
        scores_BV = np.where(allowed_V, scores_BV, -np.inf)
    if not np.isfinite(scores_BV.max(axis=1)).all():
        raise UserError(NOT_FINITE)
    if sampling.temperature == 0:
        return scores_BV.argmax(axis=1).astype(np.int32)
    order_BV, ranked_BV = ranked(scores_BV)
    with np.errstate(over="ignore"):  # at a temperature near 0, unlikely tokens go to −inf
        weights_BV = np.exp((ranked_BV - ranked_BV[:, :1]) / sampling.temperature)
    if sampling.top_k:
        weights_BV[:, sampling.top_k :] = 0
    cumulative_BV = weights_BV.cumsum(axis=1)
    likelier_BV = cumulative_BV - weights_BV  # below p, a token is still needed to reach p
    weights_BV[likelier_BV >= sampling.top_p * cumulative_BV[:, -1:]] = 0
    cumulative_BV = weights_BV.cumsum(axis=1)
    draws_B = np.array([uniform(sampling.seed, int(position)) for position in positions_B])
    rank_B = (cumulative_BV <= draws_B[:, None] * cumulative_BV[:, -1:]).sum(axis=1)
    last_B = (weights_BV > 0).sum(axis=1) - 1
    rank_B = np.minimum(rank_B, last_B)  # a draw next to 1 may round up to the total
    return order_BV[np.arange(len(rank_B)), rank_B].astype(np.int32)


def ranked(scores_BV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of each row, highest score first, and its scores in it.

    Ties go to the lowest index, but those of −inf, which nobody chooses.
    """
    rows = np.arange(len(scores_BV))[:, None]
    for kind in (None, "stable"):  # the first is much faster
        order_BV = np.argsort(-scores_BV, axis=1, kind=kind)
        ranked_BV = scores_BV[rows, order_BV]
        if not ((ranked_BV[:, 1:] == ranked_BV[:, :-1]) & (ranked_BV[:, 1:] > -np.inf)).any():
            break
    return order_BV, ranked_BV


def checked(chosen_B: np.ndarray) -> np.ndarray:
    """The tokens that a device chose, −1 for a row without a finite candidate. Raises `UserError`
    when there is one, as `choose` does."""
    if (chosen_B < 0).any():
        raise UserError(NOT_FINITE)
    return chosen_B


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that (seed, position) alone decide (Philox 4×64, Salmon et al. 2011)."""
    return uniforms(seed, position // DRAWS)[position % DRAWS]


@functools.lru_cache(maxsize=256)
def uniforms(seed: int, block: int) -> list[float]:
    """The numbers of DRAWS positions from block · DRAWS on: one by one they would take longer than
    the rest of the choice."""
    key = np.array([seed, STREAM], np.uint64)
    # a counter gives four numbers, of which the first is taken
    bits = np.random.Philox(key=key, counter=block * DRAWS).random_raw(4 * DRAWS)[::4]
    return ((bits >> np.uint64(11)) * 2.0**-53).tolist()
