"""The check of a decoded layer: a norm of heads that goes wrong fails it, in bfloat16 too.

Each class is the reference with one mistake. What it is off by is more than any engine may be.
"""

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.decoded_layer import PROMPT_SHAPES, QK_NORM_SHAPES, check_decode
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE

QUERY, KEY = 0, 1
SHAPES = [shape for shape in QK_NORM_SHAPES if shape.dim < 512]


class OneNorm(ReferenceBackend):
    """Changes the norm of queries, or of keys, which come second."""

    def __init__(self, part):
        super().__init__(np.float64)
        self.part, self.calls = part, 0

    def head_norm(self, x_NHE, norm):
        self.calls += 1
        if (self.calls - 1) % 2 == self.part:
            self.changed(x_NHE, norm)
        else:
            super().head_norm(x_NHE, norm)


class NoNorm(OneNorm):
    def changed(self, x_NHE, norm):
        pass


class AnotherEpsilon(OneNorm):
    def changed(self, x_NHE, norm):
        ReferenceBackend.head_norm(self, x_NHE, norm._replace(epsilon=1e-5))


class NoWeight(OneNorm):
    def changed(self, x_NHE, norm):
        ReferenceBackend.head_norm(self, x_NHE, norm._replace(weight_E=None))


class NormBehindRotation(OneNorm):
    def changed(self, x_NHE, norm):
        self.late = x_NHE, norm

    def rope(self, x_NHE, positions_N, table, *, inverse=False):
        super().rope(x_NHE, positions_N, table, inverse=inverse)
        ReferenceBackend.head_norm(self, *self.late)


class NormOfValues(OneNorm):
    def changed(self, x_NHE, norm):
        ReferenceBackend.head_norm(self, x_NHE, norm)

    def write_cache(self, cache_BSGE, new_BTGE, offset_B):
        self.calls += 1
        if self.calls % 2 == 0:  # behind the keys
            new_BTGE = new_BTGE / np.sqrt((new_BTGE**2).mean(axis=-1, keepdims=True) + 0.5)
        return super().write_cache(cache_BSGE, new_BTGE, offset_B)


@pytest.mark.parametrize("part", [QUERY, KEY])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.dim}, {shape.qk_norm}")
@pytest.mark.parametrize(
    "mistaken", [NoNorm, AnotherEpsilon, NoWeight, NormBehindRotation, NormOfValues]
)
def test_a_mistake_in_the_norm_of_heads_fails_the_check(mistaken, shape, part):
    if shape.qk_norm == "rms" and mistaken in (NoWeight, NormBehindRotation):
        return  # without a weight the norm and the rotation may change places
    for B, S, T in ((3, 70, 1), (2, 40, 4)):
        errors = check_decode(mistaken(part), Random(1), B, S, shape, tokens=T, composed=True)
        assert max(row.error for row in errors) > 2 * OP_TOLERANCE["bf16"]


class FewTokens(CpuBackend):
    """Counts the steps that its fused op is given, none of more tokens than it takes."""

    fused_steps = 0

    def decode_fused(self, step):
        assert step.starts_BT.shape[1] <= self.fused_tokens
        self.fused_steps += 1
        super().decode_fused(step)


@pytest.mark.parametrize(("tokens", "fused"), [(4, 1), (70, 0)])
def test_the_check_gives_a_fused_op_what_the_engine_says_that_it_takes(tokens, fused):
    engine = FewTokens(1)
    errors = check_decode(engine, Random(1), 1, 80, PROMPT_SHAPES[2], tokens=tokens)
    assert max(row.error for row in errors) < OP_TOLERANCE["fp32"]
    assert engine.fused_steps == fused
