"""Choose the next token from its logits: greedy, temperature, top-k, top-p.

Randomness is counter-based: the number that decides a token is a function of (seed, position)
alone. The same prompt and settings give the same text however the rows are batched, and a
continuation that is resumed draws the numbers of an uninterrupted one.
"""

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.system.arithmetic import exp

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
                f"at most {MOST:g}; 1 samples from the model as it is"
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
        raise UserError(f"max-tokens is {brief(max_tokens)}: it must be a whole number above 0")
    return max_tokens


GREEDY = Sampling(temperature=0.0)


def sample(
    logits_BV: np.ndarray,
    sampling: Sampling | Sequence[Sampling],
    positions_B: np.ndarray | Sequence[int],
    allowed_V: np.ndarray | None = None,
) -> np.ndarray:
    """One token id per row, (B,) int32.

    `sampling` holds for all rows, or is one for each. `positions_B` is the position in its sequence
    of each token to be sampled; `allowed_V` is True for the tokens that may be sampled at all
    (default: every one), (V,), or for each row, (B, V). A row's choice does not depend on the other
    rows. Raises `UserError` when a row has no finite candidate: its model is broken.
    """
    # loads Numba, which a trainer on a GPU or the reference engine does not need
    from nanoeuler.inference.quick_sampling import UNDECIDED, pick_rows

    settings = [sampling] * len(logits_BV) if isinstance(sampling, Sampling) else sampling
    sampled_B = np.full(len(logits_BV), UNDECIDED, np.int32)
    if logits_BV.dtype == np.float32:
        given = [(each.temperature, each.top_k, each.top_p) for each in settings]
        draws = [
            uniform(each.seed, int(at)) if each.temperature > 0 else 0.0
            for each, at in zip(settings, positions_B, strict=True)
        ]
        allowed = np.ones(logits_BV.shape[1], np.bool_) if allowed_V is None else allowed_V
        arrays = np.ascontiguousarray(logits_BV), np.atleast_2d(allowed), np.array(given)
        pick_rows(*arrays, np.array(draws), sampled_B)
    left = np.flatnonzero(sampled_B == UNDECIDED).tolist()
    if left:
        positions = [int(positions_B[row]) for row in left]
        if allowed_V is not None and allowed_V.ndim == 2:
            allowed_V = allowed_V[left]
        of_left = logits_BV[left], [settings[row] for row in left], positions, allowed_V
        sampled_B[left] = sample_sorted(*of_left)
    return sampled_B


def sample_sorted(
    logits_BV: np.ndarray,
    settings: Sequence[Sampling],
    positions: Sequence[int],
    allowed_V: np.ndarray | None,
) -> np.ndarray:
    """`sample`, by sorting the vocabulary: this defines what `pick_rows` computes."""
    scores_BV = np.asarray(logits_BV, np.float64)
    if allowed_V is not None:
        scores_BV = np.where(allowed_V, scores_BV, -np.inf)
    if not np.isfinite(scores_BV.max(axis=1)).all():
        raise UserError(NOT_FINITE)
    sampled_B = scores_BV.argmax(axis=1).astype(np.int32)
    drawn = [row for row, each in enumerate(settings) if each.temperature > 0]
    if drawn:
        drawn_positions = [positions[row] for row in drawn]
        sampled_B[drawn] = draw(scores_BV[drawn], [settings[row] for row in drawn], drawn_positions)
    return sampled_B


def draw(
    scores_BV: np.ndarray, settings: Sequence[Sampling], positions: Sequence[int]
) -> np.ndarray:
    """A token id per row of scores, by settings whose temperature is above 0, (B,)."""
    temperature_B, top_k_B, top_p_B = (
        np.array([[getattr(each, name)] for each in settings])
        for name in ("temperature", "top_k", "top_p")
    )
    order_BV = falling(scores_BV)
    ranked_BV = np.take_along_axis(scores_BV, order_BV, axis=1)
    with np.errstate(over="ignore"):  # at a temperature near 0, unlikely tokens go to −inf
        weights_BV = exp((ranked_BV - ranked_BV[:, :1]) / temperature_B)
    if top_k_B.any():
        weights_BV[(top_k_B > 0) & (np.arange(weights_BV.shape[1]) >= top_k_B)] = 0
    cumulative_BV = weights_BV.cumsum(axis=1)
    likelier_BV = cumulative_BV - weights_BV  # below p, a token is still needed to reach p
    weights_BV[likelier_BV >= top_p_B * cumulative_BV[:, -1:]] = 0
    cumulative_BV = weights_BV.cumsum(axis=1)
    draws = [uniform(each.seed, at) for each, at in zip(settings, positions, strict=True)]
    rank_B = (cumulative_BV <= np.array(draws)[:, None] * cumulative_BV[:, -1:]).sum(axis=1)
    last_B = (weights_BV > 0).sum(axis=1) - 1
    rank_B = np.minimum(rank_B, last_B)  # a draw next to 1 may round up to the total
    return np.take_along_axis(order_BV, rank_B[:, None], axis=1)[:, 0]


def falling(scores_BV: np.ndarray) -> np.ndarray:
    """Indices that put each row in falling order, ties by rising index."""
    with np.errstate(over="ignore"):
        scores32_BV = scores_BV.astype(np.float32) + np.float32(0)  # −0 becomes 0
    if (scores32_BV != scores_BV).any():
        return np.argsort(-scores_BV, axis=1, kind="stable")
    # Keys that all differ need no stable sort, which is slower by far. The bits of a negative
    # float rise as it falls; those of a positive one do so once they are inverted.
    bits_BV = scores32_BV.view(np.uint32)
    falling_BV = np.where(bits_BV >> 31, bits_BV, 0x7FFFFFFF - bits_BV).astype(np.uint64)
    keys_BV = falling_BV << 32 | np.arange(scores_BV.shape[1], dtype=np.uint64)
    keys_BV.sort(axis=1)
    return (keys_BV & 0xFFFFFFFF).view(np.int64)


def check(token: int) -> None:
    """Raises `UserError`, as `sample` does, where a device sampled −1: no candidate is finite."""
    if token < 0:
        raise UserError(NOT_FINITE)


def packed(samplings: Sequence[Sampling]) -> np.ndarray:
    """Settings as `ChoosingBackend.choose` takes them, (B, 4) in 8 bytes each."""
    rows = [
        struct.pack("ddQq", each.temperature, each.top_p, each.seed, each.top_k)
        for each in samplings
    ]
    return np.frombuffer(b"".join(rows), np.int64).reshape(-1, 4)


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
