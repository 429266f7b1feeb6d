"""bfloat16: the upper half of a float32, which NumPy has no type for."""

import numpy as np


def to_bf16(tensor: np.ndarray) -> np.ndarray:
    """The upper halves (uint16) of float32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bf16(halves: np.ndarray) -> np.ndarray:
    """The float32 numbers whose upper halves are given as uint16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)
