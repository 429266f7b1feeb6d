"""Arrays of several types one behind the other in one flat array, which goes to a device in one
copy."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 16
"""Bytes: each array starts on a multiple."""


def views(flat: Any, parts: Sequence[slice], arrays: Sequence[np.ndarray]) -> list[Any]:
    """The `parts` of a flat array of bytes, of any library, with the shapes and types of
    `arrays`."""
    pairs = zip(parts, arrays, strict=True)
    return [flat[part].view(array.dtype).reshape(array.shape) for part, array in pairs]


def offsets(values: Sequence[np.ndarray]) -> list[slice]:
    """The bytes of a flat array that `values` take, one after another."""
    sizes = [-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
    starts = [0, *itertools.accumulate(sizes)]
    return [
        slice(start, start + value.nbytes) for start, value in zip(starts, values, strict=False)
    ]
