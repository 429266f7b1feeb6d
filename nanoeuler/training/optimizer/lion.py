"""Lion (Chen et al. 2023): every element moves by the learning rate, along the sign of a momentum.

It keeps one tensor where AdamW keeps two. Its updates are some five times as long as AdamW's, so
that it wants a learning rate of a third to a tenth, and as many times the weight decay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.optimizer.adamw import AdamW, Elementwise, mean


@dataclass(frozen=True)
class Lion:
    """β₁ and β₂, weight decay and the rest are those of `adamw`, which has no other part in it."""

    adamw: AdamW
    tensor_powers: ClassVar[Mapping[str, int]] = {"momentum": 1}
    tolerance: ClassVar[Mapping[str, float]] = AdamW.tolerance

    def expected(self, gradients: Sequence[np.ndarray], matrices: int) -> np.ndarray:
        """sign(β₁ m + (1 − β₁) g)"""
        *earlier, last = gradients
        momentum = mean(self.adamw.beta2, earlier) if earlier else 0 * last
        return np.sign(self.adamw.beta1 * momentum + (1 - self.adamw.beta1) * last)

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> Elementwise:
        a = self.adamw
        constants = a.beta1, a.beta2, a.weight_decay
        return Elementwise("lion", constants, self.tensor_powers, a.runs(config), ops, part)
