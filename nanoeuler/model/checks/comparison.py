"""Two tensors side by side, and numerical derivatives.

Finite differences are central and of 4th order, in float64 with h = 1e-3:
f′(x) ≈ (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h. A complex step (Squire and Trapp 1998)
needs f to be analytic, and subtracts nothing: f′(x) = Im f(x+ih) / h with h = 1e-30.

The error of a tensor is ‖a − b‖₂ / ‖b‖₂, where b is the one to be trusted. Where ‖b‖ = 0, a has to
be exactly 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-9
"""Finite differences of single ops reach 3e-12, complex steps through whole models 1e-14. A wrong
term shows at 1e-2 and above."""

STEP, COMPLEX_STEP = 1e-3, 1e-30

NORM_EPSILON = 0.5
"""The ε of norms whose inputs have mean squares around 1. Beside the usual 1e-5 none of these would
tell, in the roundings of bfloat16, whether it was added inside or outside of the root, or at all.
Fresh embeddings, with mean squares of 4e-4, do."""


@dataclass(frozen=True)
class Comparison:
    """A tensor beside what it should be."""

    case: str
    tensor: str
    elements: int
    error: float  # relative, by norm
    worst: float  # largest difference of an element, relative to the largest element: not judged
    limit: float = TOLERANCE  # of the error

    @property
    def passed(self) -> bool:
        return self.error <= self.limit  # False for NaN too


def compare(
    case: str,
    tensor: str,
    found: np.ndarray,
    expected: np.ndarray,
    limit: float = TOLERANCE,
    least_norm: float = 0.0,
) -> Comparison:
    """`found` beside `expected`, of the same shape.

    A norm below `least_norm` counts as that much: all that is left of such a tensor are roundings.
    """
    difference = np.linalg.norm(found - expected)
    norm = max(float(np.linalg.norm(expected)), least_norm)
    if norm == 0:
        error = 0.0 if not np.any(found) else float("inf")
        return Comparison(case, tensor, found.size, error, error, limit)
    worst = np.abs(found - expected).max() / max(np.abs(expected).max(), least_norm)
    return Comparison(case, tensor, found.size, float(difference / norm), float(worst), limit)


def finite_difference(function: Callable[[], float], values: np.ndarray) -> np.ndarray:
    """The derivative of `function()` with respect to each element of `values`.

    Elements are changed in place, and restored.
    """
    gradient = np.empty(values.shape)
    for index in np.ndindex(values.shape):
        kept = values[index]
        samples = []
        for multiple in (1, -1, 2, -2):
            values[index] = kept + multiple * STEP
            samples.append(function())
        values[index] = kept
        gradient[index] = (8 * (samples[0] - samples[1]) - (samples[2] - samples[3])) / (12 * STEP)
    return gradient


def complex_step(function: Callable[[], complex], values: np.ndarray) -> np.ndarray:
    """The derivative of `function()` with respect to each element of `values`, which are complex.

    Elements are changed in place, and restored.
    """
    gradient = np.empty(values.shape)
    for index in np.ndindex(values.shape):
        kept = values[index]
        values[index] = kept + 1j * COMPLEX_STEP
        gradient[index] = function().imag / COMPLEX_STEP
        values[index] = kept
    return gradient
