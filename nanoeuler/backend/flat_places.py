"""Arrays of several types one behind the other in one flat array, which goes to a device in one copy."""

import itertools

import numpy as np

Array = np.ndarray


def lay_out(target: Array, values: list[Array]) -> None:
    """Copy arrays into a flat one, byte for byte, each to the place that `places` gives."""
    for place, value in zip(places(values), values, strict=True):
        target.view(np.uint8)[place] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def places(values: list[Array]) -> list[slice]:
    """Bytes of a flat array where `values` go, one after the other, each on a 16-byte border."""
    starts = [0, *itertools.accumulate(-(-value.nbytes // 16) * 16 for value in values)]
    return [
        slice(start, start + value.nbytes) for start, value in zip(starts, values, strict=False)
    ]
