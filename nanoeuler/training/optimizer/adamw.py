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
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.tensors import Tensor
from nanoeuler.training.optimizer.optimizer import mean


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
        ("fp64", "fp32", "tf32", "bf16", "fp8"), 1e-6
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

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> "AdamWOptimizer":
        return AdamWOptimizer(self, config, ops, part)


class AdamWOptimizer:
    """Both moments of every parameter. Matrices decay, norms don't."""

    def __init__(self, settings: AdamW, config: ModelConfig, ops: Backend, part: slice):
        self.ops = ops
        self.constants = AdamWConstants(
            settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay
        )
        self.runs = cut(parameter_runs(config, settings.embedding_rate), part)
        self.tensors: dict[str, Array] = {
            name: ops.zeros((part.stop - part.start,)) for name in settings.tensor_powers
        }

    def update(self, flat: FlatState, scalars: Array) -> None:
        first, second = self.tensors.values()
        self.ops.move("adamw", flat, (first, second), self.runs, self.constants, scalars)


def parameter_runs(
    config: ModelConfig, embedding_rate: float = 1.0, left_out: Collection[str] = ()
) -> list[ParameterRun]:
    """The flat buffer as runs of tensors that AdamW moves alike, but those `left_out`."""

    embedding = family_of(config).EMBEDDING

    def treatment(tensor: Tensor) -> tuple[bool, float] | None:
        if tensor.name in left_out:
            return None
        return tensor.decay, embedding_rate if tensor.name == embedding else 1.0

    runs = []
    for alike, group in itertools.groupby(tensor_table(config), treatment):
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
