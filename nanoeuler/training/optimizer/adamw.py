"""AdamW (Loshchilov & Hutter 2019) with the gradient's norm clipped."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import AdamWConstants, Array, FlatState, ParameterRun
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.spec import trained_table
from nanoeuler.model.tensors import Tensor


@dataclass(frozen=True)
class AdamW:
    """The constants; the learning rate comes from the schedule."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    embedding_rate: float = 1.0  # multiple of the learning rate, for the embedding
    tensor_powers: ClassVar[Mapping[str, int]] = {"first_moment": 1, "second_moment": 2}
    # float32 in every precision
    tolerance: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8"), 1e-6
    )

    @property
    def adamw(self) -> "AdamW":
        return self

    def expected(self, gradients: Sequence[np.ndarray], matrices: int) -> np.ndarray:
        """m̂ / (√v̂ + ε)"""
        steps = len(gradients)
        first = mean(self.beta1, gradients) / (1 - self.beta1**steps)
        second = mean(self.beta2, [values**2 for values in gradients]) / (1 - self.beta2**steps)
        return first / (np.sqrt(second) + self.epsilon)

    @property
    def constants(self) -> AdamWConstants:
        return AdamWConstants(self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> "Elementwise":
        constants, names = self.constants, self.tensor_powers
        return Elementwise("adamw", constants, names, self.runs(config), ops, part)

    def runs(self, config: ModelConfig, left_out: Collection[str] = ()) -> list[ParameterRun]:
        """The parameters that are trained, but the tensors `left_out`."""
        return parameter_runs(config, self.embedding_rate, left_out)


class Elementwise:
    """Moves every element by itself, by a rule of the op `move`, with tensors of these names."""

    def __init__(
        self,
        rule: str,
        constants: Sequence[float],
        names: Iterable[str],
        runs: Iterable[ParameterRun],
        ops: Backend,
        part: slice,
    ):
        self.rule, self.constants, self.runs, self.ops = rule, constants, cut(runs, part), ops
        size = part.stop - part.start
        self.tensors: dict[str, Array] = {name: ops.zeros((size,)) for name in names}

    def update(self, flat: FlatState, scalars: Array) -> None:
        tensors = tuple(self.tensors.values())
        self.ops.move(self.rule, flat, tensors, self.runs, self.constants, scalars)


def parameter_runs(
    config: ModelConfig, embedding_rate: float = 1.0, left_out: Collection[str] = ()
) -> list[ParameterRun]:
    """What is trained as runs of tensors that are moved alike, but those `left_out`.

    Matrices decay, norms don't.
    """

    embedding = family_of(config).embedding

    def treatment(tensor: Tensor) -> tuple[bool, float] | None:
        if tensor.name in left_out:
            return None
        return tensor.decay, embedding_rate if tensor.name == embedding else 1.0

    runs = []
    for alike, group in itertools.groupby(trained_table(config), treatment):
        tensors = list(group)
        if alike:
            runs.append(ParameterRun(slice(tensors[0].offset, tensors[-1].stop), *alike))
    return runs


def cut(runs: Iterable[ParameterRun], part: slice) -> list[ParameterRun]:
    """Clip runs to `part`; offsets become relative to its start."""
    found = []
    for run in runs:
        start, stop = max(run.part.start, part.start), min(run.part.stop, part.stop)
        if start < stop:
            found.append(run._replace(part=slice(start - part.start, stop - part.start)))
    return found


def mean(decay: float, values: Sequence[np.ndarray]) -> np.ndarray:
    """(1 − decay) Σ decayᵀ⁻ᵗ valuesₜ, what a moment that begins with zero has become."""
    weights = [(1 - decay) * decay**age for age in reversed(range(len(values)))]
    return np.einsum("t,t...->...", weights, np.array(values))
