"""One op computed by an engine and by the reference in float64, on the same numbers.

The reference gets the numbers that the engine gets, after rounding to the engine's types: what
differs is the engine's arithmetic. Outputs are filled with NaN beforehand, so that an element that
was not written shows.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Comparison, compare

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
    """Run `call(ops, arrays)` on the engine and on the reference.

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
        found = np.asarray(engine.to_host(getattr(on_engine, name)), np.float64)
        expected = np.asarray(getattr(on_reference, name), np.float64)
        yield compare(case, name, found, expected)
