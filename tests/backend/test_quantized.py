"""Matrices of whole numbers with scales: the formats are GGUF's, and the CPU multiplies by their
numbers.

A product rounds its vectors to 16 bits, which changes it by some 2e-5; a wrong scale or code shows
at 1e-2.
"""

import numpy as np
import pytest
from numba import njit

from nanoeuler.backend.cpu import quantized
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.quantized import BLOCK, CODES, Quantized, empty, round_into
from nanoeuler.backend.reference import ReferenceBackend

TOLERANCE = 1e-4
SHAPES = [(1, 32), (5, 64), (37, 688), (16, 256), (20, 100), (66, 1)]
"""Also rows that are no whole blocks, and numbers of rows and blocks that nothing divides."""


@pytest.fixture
def random():
    return np.random.default_rng(1)


def rounded(random, format, shape):
    matrix = random.standard_normal(shape).astype(np.float32)
    made = empty(format, shape)
    round_into(made, matrix)
    return made, matrix


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_a_block_of_the_compiled_code_is_one_of_the_formats():
    assert quantized.BLOCK == BLOCK


@pytest.mark.parametrize("format", CODES)
def test_numbers_are_those_of_ggufs_own_quantizer_and_dequantizer(format, random):
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    kind = gguf.GGMLQuantizationType[format.upper()]
    made, matrix = rounded(random, format, (300, 256))
    blocks = gguf.quants.quantize(matrix, kind)
    assert np.array_equal(gguf.quants.dequantize(blocks, kind), made.dense())


@pytest.mark.parametrize("format", CODES)
def test_rounding_again_changes_nothing(format, random):
    made, _ = rounded(random, format, (40, 256))
    again = empty(format, (40, 256))
    round_into(again, made.dense())
    assert np.array_equal(again.dense(), made.dense())


@pytest.mark.parametrize(("format", "error"), [("q8_0", 0.006), ("q4_0", 0.1)])
def test_numbers_are_near_the_matrix(format, error, random):
    made, matrix = rounded(random, format, (60, 200))
    assert made.dense().shape == matrix.shape
    assert relative(made.dense(), matrix) < error


@pytest.mark.parametrize("format", CODES)
def test_a_matrix_of_zeros_stays_one(format):
    made = empty(format, (4, 64))
    round_into(made, np.zeros((4, 64), np.float32))
    assert not made.dense().any()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", CODES)
def test_products_on_the_cpu_are_the_references(format, shape, threads, random):
    made, _ = rounded(random, format, shape)
    ops, reference = CpuBackend(threads), ReferenceBackend(np.float64)
    ops.least_elements, ops.least_product = 100, 1000
    for tokens in (1, 2, 3, 4, 7, 32, 33, 70):
        x = random.standard_normal((tokens, shape[1])).astype(np.float32)
        found, expected = ops.zeros((tokens, shape[0])), np.zeros((tokens, shape[0]))
        ops.linear(x, made, found)
        reference.linear(x.astype(np.float64), made, expected)
        assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("format", CODES)
def test_a_product_does_not_depend_on_the_rows_beside_it(format, random):
    """So drafts that are checked together are those that each would be alone."""
    made, _ = rounded(random, format, (50, 96))
    ops = CpuBackend(1)
    x = random.standard_normal((8, 96)).astype(np.float32)
    together, alone = ops.zeros((8, 50)), ops.zeros((1, 50))
    ops.linear(x, made, together)
    for row, expected in zip(x, together, strict=True):
        ops.linear(row[None].copy(), made, alone)
        assert np.array_equal(alone[0], expected)


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e6, 1e30])
def test_vectors_of_any_size_are_multiplied(scale, random):
    made, _ = rounded(random, "q8_0", (10, 64))
    x = (scale * random.standard_normal((1, 64))).astype(np.float32)
    found = np.zeros((1, 10), np.float32)
    CpuBackend(1).linear(x, made, found)
    expected = x.astype(np.float64) @ made.dense().T.astype(np.float64)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max() + 1e-28


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", CODES)
def test_what_is_not_finite_shows_in_every_output(format, value, random):
    made, _ = rounded(random, format, (6, 96))
    x = random.standard_normal((2, 96)).astype(np.float32)
    x[1, 50] = value
    found = np.zeros((2, 6), np.float32)
    CpuBackend(1).linear(x, made, found)
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).any()


@pytest.mark.parametrize("shape", [(40, 64), (40, 50)])
@pytest.mark.parametrize("format", CODES)
def test_an_embedding_has_the_numbers_of_its_rows(format, shape, random):
    made, _ = rounded(random, format, shape)
    ids = np.array([0, 39, 7, 7], np.int32)
    for ops in (CpuBackend(1), ReferenceBackend()):
        found = ops.zeros((4, shape[1]))
        ops.embedding(ids, made, found)
        assert np.array_equal(found, made.dense()[ids])
        positions = random.standard_normal((9, shape[1])).astype(np.float32)
        ops.embedding_at(ids, made, np.array([0, 1, 2, 3], np.int32), positions, found)
        assert np.array_equal(found, made.dense()[ids] + positions[:4])


@pytest.mark.parametrize("format", CODES)
def test_processors_without_avx2_get_the_same_bits(format, random, monkeypatch):
    made, _ = rounded(random, format, (2, 352))
    x = random.standard_normal((2, 352)).astype(np.float32)
    scratch = np.zeros(quantized.rounded_floats(352, 2), np.float32)
    found = []
    for has in (quantized.HAS_PAIR_SUMS, False):
        monkeypatch.setattr(quantized, "HAS_PAIR_SUMS", has)
        dots, round_rows = quantized.make_dots(2), quantized.round_rows

        @njit
        def multiply(codes, scales, x, scratch, out, dots=dots, round_rows=round_rows):
            round_rows(codes, x, scratch)
            dots(codes, scales, 1, scratch, 0, out, 0, 1)

        found.append(np.zeros(2, np.float32))
        multiply(*quantized.arrays_of(made), x, scratch, found[-1])
    assert found[0].any()
    assert np.array_equal(*found)


def test_rows_of_a_matrix_are_a_matrix(random):
    made, _ = rounded(random, "q4_0", (10, 64))
    part = made[2:5]
    assert isinstance(part, Quantized)
    assert part.shape == (3, 64)
    assert np.array_equal(part.dense(), made.dense()[2:5])
