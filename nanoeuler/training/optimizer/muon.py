"""Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for all other parameters.

Muon moves a matrix by the orthogonal matrix nearest to its momentum, so that no direction is
neglected. q, k, v, gate and up are a matrix each, although the forward pass packs some of them into
one, and GPT-2's files hold q, k and v as one tensor: docs/experiments/training.md has what that
brings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, FlatState, MatrixGroup, MuonConstants
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import block_matrices
from nanoeuler.model.tensors import Tensor
from nanoeuler.training.optimizer.adamw import AdamW, Elementwise, mean

POLYNOMIALS = (
    (8.205160, -22.901935, 16.460725),
    (4.066395, -2.861155, 0.518400),
    (3.909595, -2.823352, 0.525037),
    (3.285564, -2.415302, 0.485294),
    (2.277873, -1.619822, 0.398481),
)
"""Newton–Schulz polynomials of the Polar Express (Amsel et al. 2025), for singular values of at
least 1e-3 and with their safety factor of 1.01. They bring 0.001 … 1 into 0.85 … 1.12."""

UPDATE_SCALE = 0.2
"""Root mean square of an update's elements, per unit of learning rate: AdamW's is about this (Liu
et al. 2025), so that the learning rates of both are alike."""


@dataclass(frozen=True)
class Muon:
    """The constants; the learning rate comes from the schedule."""

    momentum: float
    adamw: AdamW  # for the other parameters; its weight decay is Muon's, too
    tensor_powers: ClassVar[Mapping[str, int]] = AdamW.tensor_powers
    # an update of a hundredth, from products that are rounded to the precision fifteen times
    tolerance: ClassVar[Mapping[str, float]] = {
        "fp64": 1e-11,
        "fp32": 1e-6,
        "tf32": 5e-4,
        "fp16": 1e-6,  # whose products are those of fp32
        "bf16": 5e-3,
        "fp8": 5e-3,  # which Muon's own products are not computed in
    }

    def expected(self, gradients: Sequence[np.ndarray], matrices: int) -> np.ndarray:
        """scale · U Vᵀ of each of the matrices, whose direction is Nesterov's."""
        if not matrices:
            return self.adamw.expected(gradients, matrices)
        mu = self.momentum
        direction = mu * mean(mu, gradients) + (1 - mu) * gradients[-1]
        parts = []
        for part in np.split(direction, matrices):
            left, values, right = np.linalg.svd(part, full_matrices=False)
            values /= np.linalg.norm(values) + 1e-20
            for a, b, c in POLYNOMIALS:
                values = a * values + b * values**3 + c * values**5
            parts.append(UPDATE_SCALE * math.sqrt(max(part.shape)) * (left * values) @ right)
        return np.concatenate(parts)

    def make(self, config: ModelConfig, ops: Backend, part: slice) -> "MuonOptimizer":
        return MuonOptimizer(self, config, ops, part)


class MuonOptimizer(Elementwise):
    """The first moment is Muon's momentum where Muon moves a matrix; there is no second there."""

    def __init__(self, settings: Muon, config: ModelConfig, ops: Backend, part: slice):
        adamw, matrices = settings.adamw, block_matrices(config)
        moved = {matrix.name for matrix in matrices}
        runs = adamw.runs(config, left_out=moved)
        super().__init__("adamw", adamw.constants, settings.tensor_powers, runs, ops, part)
        self.groups = matrix_groups(matrices, part)
        self.muon_constants = MuonConstants(settings.momentum, adamw.weight_decay, POLYNOMIALS)

    def update(self, flat: FlatState, scalars: Array) -> None:
        super().update(flat, scalars)
        first = self.tensors["first_moment"]
        self.ops.muon(flat, first, self.groups, self.muon_constants, scalars)


def matrix_groups(matrices: list[Tensor], part: slice) -> list[MatrixGroup]:
    """The matrices of a part of the flat buffer by their shape, counted from where it begins.

    A tensor of several matrices counts as these.
    """
    by_shape: dict[tuple[int, int, int], list[int]] = {}
    for tensor in matrices:
        if not part.start <= tensor.offset < part.stop:
            continue
        rows, columns = tensor.storage_shape[0] // tensor.matrices, tensor.storage_shape[1]
        longer = max(tensor.shape[0] // tensor.matrices, tensor.shape[1])
        first = tensor.offset - part.start
        offsets = range(first, first + tensor.storage_size, rows * columns)
        by_shape.setdefault((rows, columns, longer), []).extend(offsets)
    return [
        MatrixGroup(rows, columns, tuple(offsets), UPDATE_SCALE * math.sqrt(longer))
        for (rows, columns, longer), offsets in by_shape.items()
    ]
