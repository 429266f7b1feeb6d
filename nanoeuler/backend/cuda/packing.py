"""Arrays of several types one behind the other in one flat array, which goes to a device in one
copy."""

import itertools

import numpy as np

ALIGNMENT = 16
"""Bytes: each array starts on a multiple."""


def lay_out(target: np.ndarray, values: list[np.ndarray]) -> None:
    """Copy arrays into a flat one, byte for byte, each to its slice of `offsets`."""
    for part, value in zip(offsets(values), values, strict=True):
        target.view(np.uint8)[part] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def offsets(values: list[np.ndarray]) -> list[slice]:
    """The bytes of a flat array that `values` take, one after another."""
    sizes = [-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
    starts = [0, *itertools.accumulate(sizes)]
    return [
        slice(start, start + value.nbytes) for start, value in zip(starts, values, strict=False)
    ]
