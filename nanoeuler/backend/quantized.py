"""Matrices of small whole numbers, with a scale for each block of 32 of a row: the specification.

    w[o, i] = scale[o, i // 32] · number[o, i]

The formats are GGUF's. `q8_0` has numbers −127 … 127, each a code of a byte. `q4_0` has −8 … 7; a
code is a number plus 8, and byte j of a block holds code j in its lower half, code j + 16 in its
upper half. Scales are float16: 8.5 and 4.5 bits a weight. Rows are filled up to whole blocks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.backend.records import Array

BLOCK = 32
"""Weights of a row that share a scale."""
CODES = {"q8_0": np.dtype(np.int8), "q4_0": np.dtype(np.uint8)}
"""Formats, and the types of their codes."""
FORMATS = {dtype: format for format, dtype in CODES.items()}
ROWS_AT_ONCE = 1 << 20
"""Weights that are rounded at once, whose float32 copies take some memory."""


@dataclass(frozen=True)
class Quantized:
    """A matrix (out, in) of a format, which its codes' type tells."""

    codes: Array  # (O, C) int8, or (O, C / 2) uint8; C: columns rounded up to whole blocks
    scales: Array  # (O, C / 32) float16
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.columns

    @property
    def size(self) -> int:
        return len(self.codes) * self.columns

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "Quantized":
        """Some rows, by a slice or by their numbers."""
        return Quantized(self.codes[rows], self.scales[rows], self.columns)

    def dense(self) -> np.ndarray:
        """The matrix in float32."""
        O, B = self.scales.shape  # noqa: E741
        codes = self.codes.reshape(O, B, -1)
        if codes.dtype == np.uint8:
            halves = codes & 15, codes >> 4
            codes = np.concatenate(halves, axis=2).astype(np.int8) - np.int8(8)
        numbers = codes * self.scales.astype(np.float32)[:, :, None]
        return numbers.reshape(O, -1)[:, : self.columns]


def in_floats(matrix: Array | Quantized) -> Array:
    return matrix.dense() if isinstance(matrix, Quantized) else matrix


def code_bytes(format: str, columns: int) -> tuple[int, int]:
    """Bytes of a row's codes, and its scales."""
    blocks = -(-columns // BLOCK)
    return blocks * BLOCK // (1 if format == "q8_0" else 2), blocks


def empty(format: str, shape: tuple[int, int], allocate: Any = np.zeros) -> Quantized:
    """A matrix for `round_into`, in memory from `allocate`(shape, type)."""
    O, columns = shape  # noqa: E741
    row, blocks = code_bytes(format, columns)
    codes = allocate((O, row), CODES[format])
    return Quantized(codes, allocate((O, blocks), np.dtype(np.float16)), columns)


def round_into(out: Quantized, matrix_OI: np.ndarray) -> None:
    """Round a float32 matrix to the format of `out`.

    A scale that float16 does not hold becomes infinite.
    """
    rows = max(1, ROWS_AT_ONCE // out.columns)
    for first in range(0, len(out), rows):
        part = out[first : first + rows]
        O, B = part.scales.shape  # noqa: E741
        padded = np.zeros((O, B * BLOCK), np.float32)
        padded[:, : out.columns] = matrix_OI[first : first + rows]
        rounding = rounded_q8_0 if part.codes.dtype == np.int8 else rounded_q4_0
        part.codes[...], part.scales[...] = rounding(padded.reshape(O, B, BLOCK))


def rounded_q8_0(x_OBK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales as ggml rounds: the largest magnitude of a block becomes 127."""
    scales_OB = np.abs(x_OBK).max(axis=2) / np.float32(127)
    exact = x_OBK * inverse(scales_OB)[:, :, None]
    whole = np.trunc(exact)
    whole += np.trunc(2 * (exact - whole))  # halves away from zero, as roundf does
    return whole.astype(np.int8).reshape(len(x_OBK), -1), half(scales_OB)


def rounded_q4_0(x_OBK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales as ggml rounds: the number of largest magnitude becomes −8."""
    at_OB1 = np.abs(x_OBK).argmax(axis=2, keepdims=True)
    scales_OB = np.take_along_axis(x_OBK, at_OB1, axis=2)[:, :, 0] / np.float32(-8)
    exact = x_OBK * inverse(scales_OB)[:, :, None]
    codes = np.clip(np.trunc(exact + np.float32(8.5)), 0, 15).astype(np.uint8)
    low, high = codes[:, :, : BLOCK // 2], codes[:, :, BLOCK // 2 :]
    return (low | high << 4).reshape(len(x_OBK), -1), half(scales_OB)


def inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scale; 0 for a block of zeros."""
    with np.errstate(divide="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def half(scales: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return scales.astype(np.float16)
