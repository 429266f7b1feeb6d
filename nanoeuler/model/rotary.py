"""Rotary positions of a model: how fast each pair of elements turns.

    φᵢ = position · θ^(−2i/E) · scaleᵢ

A pair turns through `original_context · θ^(−2i/E) / 2π` full turns in the original context.
"""

import math
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import RopeTable
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.rope_scaling import Linear, Llama3, Yarn
from nanoeuler.system.arithmetic import exp, log

FIRST_POSITIONS = 4096
"""Positions of a model's first tables, if its context has as many."""


def rope_arguments(config: ModelConfig) -> tuple[Any, ...]:
    """What the op `rope_table` takes behind `positions`, in layers that see the whole document."""
    c = config
    if c.rope_scaling is None and c.query_scalar is None:
        return c.head_size, c.rope_theta
    return c.head_size, c.rope_theta, *rope_scale(c)


class RotaryTables:
    """A model's tables of angles, which grow with what it reads.

    They are no parameters: a context may grow after training, and of a long one only what is used
    takes memory.
    """

    def __init__(self, config: ModelConfig, ops: Backend):
        self.config, self.ops = config, ops
        self.made: list[tuple[RopeTable, RopeTable]] = []
        """Tables of layers that see the whole document, and of those with a sliding window. The
        longest are last; programs that were recorded read the shorter ones."""
        self.need(min(config.context, FIRST_POSITIONS))

    @property
    def whole(self) -> RopeTable:
        return self.made[-1][0]

    @property
    def in_windows(self) -> RopeTable:
        return self.made[-1][1]

    def need(self, positions: int) -> None:
        """Have tables of at least `positions`."""
        known = len(self.whole[0]) if self.made else 0
        if known < positions:
            positions, c, make = max(positions, 2 * known), self.config, self.ops.rope_table
            whole = in_windows = make(positions, *rope_arguments(c))
            if theta := c.window_rope_theta:
                in_windows = make(positions, c.head_size, theta, 1.0, score_root(c))
            self.made.append((whole, in_windows))


def score_root(config: ModelConfig) -> float:
    """The factor on q and on k that makes q · k / √head_size of them q · k / √query_scalar: the
    fourth root of head_size / query_scalar."""
    ratio = config.head_size / (config.query_scalar or config.head_size)
    return math.sqrt(math.sqrt(ratio))


def rope_scale(config: ModelConfig) -> tuple[np.ndarray, float]:
    """The factor on the frequency of each pair, (head_size / 2,) in float64, and the factor on
    cosines and sines.

    linear (Chen et al. 2023): 1 / s. llama3 (as released with Llama 3.1), with t turns in the
    original context: w + (1 − w) / s, w = (t − low) / (high − low), within 0 and 1.
    yarn (Peng et al. 2023, section 3.2, as transformers computes it): the same, with w falling from
    1 to 0 between the pairs that turn `beta_fast` and `beta_slow` times.
    """
    c, scaling, root = config, config.rope_scaling, score_root(config)
    pairs_I = np.arange(c.head_size // 2)
    match scaling:
        case Llama3():
            frequencies_I = exp(-2 * pairs_I / c.head_size * log(c.rope_theta))
            turns_I = scaling.original_context * frequencies_I / (2 * math.pi)
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            kept_I = np.clip((turns_I - low) / (high - low), 0, 1)
            return kept_I + (1 - kept_I) / scaling.factor, root
        case Yarn():
            assert scaling.attention_factor is not None  # it was filled in
            first, last = yarn_ramp(c, scaling)
            kept_I = 1 - np.clip((pairs_I - first) / (last - first), 0, 1)
            return kept_I + (1 - kept_I) / scaling.factor, root * scaling.attention_factor
        case Linear():
            return np.full(len(pairs_I), 1 / scaling.factor), root
        case _:
            return np.ones(len(pairs_I)), root


def yarn_ramp(config: ModelConfig, scaling: Yarn) -> tuple[float, float]:
    """The pairs, as real numbers, between which frequencies go over from kept to divided."""
    c = config

    def pair(turns: float) -> float:
        """The pair that turns so often in the original context."""
        longest = scaling.original_context / (turns * 2 * math.pi)
        return c.head_size * log(longest) / (2 * log(c.rope_theta))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, c.head_size - 1)
    return first, last + 0.001 * (first == last)  # as transformers avoids a division by zero
