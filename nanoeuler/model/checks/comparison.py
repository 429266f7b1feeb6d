"""Two tensors side by side, an op on two engines, and numerical derivatives.

Finite differences are central and of 4th order, in float64 with h = 1e-3:
f′(x) ≈ (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h. A complex step (Squire and Trapp 1998)
needs f to be analytic, and subtracts nothing: f′(x) = Im f(x+ih) / h with h = 1e-30.

The error of a tensor is ‖a − b‖₂ / ‖b‖₂, where b is the one to be trusted. Where ‖b‖ = 0, a has to
be exactly 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.backend.reference import ReferenceBackend

TOLERANCE = 1e-9
"""Finite differences of single ops reach 3e-12, complex steps through whole models 1e-14. A wrong
term shows at 1e-2 and above."""

STEP, COMPLEX_STEP = 1e-3, 1e-30

ELEMENTWISE = ("gelu", "relu2")
"""Ops op(x, out) with op_backward(dout, x, dx, out): see `gelu` in the contract."""

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


Input = tuple[np.ndarray, str]
"""Values and their kind: activation, residual, statistic or index."""

Output = tuple[tuple[int, ...], str]
"""Shape and kind."""


class Arrays(SimpleNamespace):
    """The arrays of an op by name, all of one engine."""


class Random:
    """Random arrays of each kind, one after the other from one seed."""

    def __init__(self, seed: int):
        self.generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        return self.generator.standard_normal(shape)

    def integers(self, stop: int, count: int) -> np.ndarray:
        """Whole numbers from 0 to `stop` − 1, (count,) int32."""
        return self.generator.integers(0, stop, count).astype(np.int32)

    def activation(self, *shape: int) -> Input:
        return self.normal(*shape), "activation"

    def residual(self, *shape: int) -> Input:
        return self.normal(*shape), "residual"

    def statistic(self, *shape: int) -> Input:
        return self.normal(*shape), "statistic"


def compare_op(
    case: str,
    engine: Backend,
    inputs: dict[str, Input],
    outputs: dict[str, Output],
    call: Callable[[Backend, Arrays], None],
    changed: tuple[str, ...] = (),
) -> Iterator[Comparison]:
    """Run `call(ops, arrays)` on the engine and on the reference in float64, on the same numbers.

    The reference gets the numbers that the engine gets, after rounding to the engine's types: what
    differs is the engine's arithmetic. Outputs are filled with NaN beforehand, so that an element
    that was not written shows.

    Compares `outputs`, and the arrays named in `changed`: inputs that the op changes in place, or
    arrays that `call` adds.
    """
    reference = ReferenceBackend(np.float64)
    types = {
        "activation": engine.activation,
        "residual": engine.residual,
        "statistic": engine.dtype,
    }
    on_engine, on_reference = Arrays(), Arrays()
    for name, (values, kind) in inputs.items():
        array = engine.from_host(values, types.get(kind))
        host = engine.to_host(array)
        is_float = host.dtype.kind == "f"
        setattr(on_engine, name, array)
        setattr(on_reference, name, host.astype(np.float64) if is_float else host.copy())
    for name, (shape, kind) in outputs.items():
        unwritten = np.full(shape, np.nan)
        setattr(on_engine, name, engine.from_host(unwritten, types[kind]))
        setattr(on_reference, name, unwritten.copy())
    call(engine, on_engine)
    call(reference, on_reference)
    for name in (*outputs, *changed):
        found = in_float64(engine, getattr(on_engine, name))
        expected = np.asarray(getattr(on_reference, name), np.float64)
        yield compare(case, name, found, expected)


def in_float64(engine: Backend, array: Array) -> np.ndarray:
    """An array of the engine on the host."""
    return np.asarray(engine.to_host(array), np.float64)
