"""Every op beside the reference in float64, on sizes that fit no tile, and planted mistakes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from nanoeuler.backend.records import RmsNorm
from nanoeuler.backend.webgpu import kernels
from nanoeuler.model.checks import engine_ops
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.decoded_layer import LayerShape, check_decode
from nanoeuler.model.checks.engine_attention import (
    check_attention,
    check_cached_attention,
    check_linear_rope,
    check_rope,
)
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE

LIMIT = OP_TOLERANCE["fp32"]
CASES = {
    "products": [
        partial(engine_ops.check_linear, N=1, D=8, columns=24),
        partial(engine_ops.check_linear, N=8, D=129, columns=35),
        partial(engine_ops.check_linear, N=70, D=66, columns=131),
        partial(engine_ops.check_linear, N=72, D=600, columns=132),  # in quads, and in parts
    ],
    "embedding": [
        partial(engine_ops.check_embedding, N=1100, D=24, V=40),
        partial(engine_ops.check_embedding_at, N=25, D=136, V=40, P=12),
    ],
    "rms_norm": [
        partial(engine_ops.check_norm, "rms_norm", N=1, D=8),
        partial(engine_ops.check_norm, "rms_norm", N=37, D=200),
    ],
    "layer_norm": [partial(engine_ops.check_norm, "layer_norm", N=37, D=200)],
    "rope": [
        partial(check_rope, N=37, H=3, E=64),
        partial(check_linear_rope, N=11, D=16, H=3, G=1, E=32),
    ],
    "attention": [
        partial(check_attention, B=1, T=1, H=1, G=1, E=32),
        partial(check_attention, B=2, T=14, H=4, G=2, E=36),
        partial(check_attention, B=2, T=140, H=4, G=2, E=32),  # wide from here on
        partial(check_attention, B=1, T=37, H=2, G=1, E=44, cap=0.9),
        partial(check_cached_attention, B=3, T=5, S=140, H=4, G=1, E=36, cap=0.9),
        partial(check_cached_attention, B=3, T=17, S=140, H=4, G=1, E=32, cap=0.9),
    ],
    "attention of wide heads": [partial(check_attention, B=1, T=7, H=2, G=1, E=256, cap=0.9)],
    "decoded layers": [  # of several rows, with a token of each or more
        partial(check_decode, B=3, S=20, shape=LayerShape(24, 2, 1, 12, 40)),
        partial(check_decode, B=2, S=300, shape=LayerShape(22, 2, 1, 12, 40), tokens=3),
        partial(check_decode, B=5, S=9, shape=LayerShape(24, 2, 1, 12, 40), tokens=2),
        partial(check_decode, B=2, S=20, shape=LayerShape(24, 2, 2, 12, 40, "gpt2"), tokens=3),
        partial(check_decode, B=9, S=9, shape=LayerShape(24, 2, 1, 12, 40, qk_norm="rms")),
    ],
    "swiglu": [
        partial(engine_ops.check_swiglu, N=37, F=44),
        partial(engine_ops.check_linear_swiglu, N=9, D=16, F=44),
    ],
    "gelu": [partial(engine_ops.check_linear_gelu, N=37, D=16, F=44)],
    "elementwise": [
        *(partial(engine_ops.check_elementwise, op, N=37, F=44) for op in ("gelu", "relu2")),
        partial(engine_ops.check_geglu, N=37, F=44),
        partial(engine_ops.check_soft_cap, N=37, V=44),
        partial(engine_ops.check_dropout, N=37, F=44),
    ],
    "losses": [
        partial(engine_ops.check_cross_entropy, R=37, V=50),
        partial(engine_ops.check_cross_entropy, R=3, V=5001),
        engine_ops.check_all_masked,
        engine_ops.check_preference,
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_agrees_with_the_specification(either, name):
    for check in CASES[name]:
        for row in check(either, random=Random(3)):
            assert row.error <= OP_TOLERANCE[either.precision], row


SMALL = {
    "product": partial(engine_ops.check_linear, N=9, D=40, columns=24),
    "product_wide": partial(engine_ops.check_linear, N=68, D=68, columns=600),
    "few_rows": partial(engine_ops.check_linear, N=8, D=41, columns=12),
    "few_rows in quads": partial(engine_ops.check_linear, N=8, D=40, columns=12),
    "rms_norm": partial(engine_ops.check_norm, "rms_norm", N=9, D=24),
    "layer_norm": partial(engine_ops.check_norm, "layer_norm", N=9, D=24),
    "embedding": partial(engine_ops.check_embedding, N=30, D=16, V=8),
    "rope": partial(check_rope, N=9, H=3, E=8),
    "decoding": partial(check_decode, B=2, S=20, shape=LayerShape(24, 2, 1, 12, 40), tokens=2),
    "attention": partial(check_attention, B=1, T=9, H=2, G=1, E=8),
    "attention_wide": partial(check_attention, B=1, T=90, H=2, G=1, E=8),
    "swiglu": partial(engine_ops.check_swiglu, N=9, F=12),
    "cross_entropy": partial(engine_ops.check_cross_entropy, R=9, V=50),
    "preference": engine_ops.check_preference,
    "dropout": partial(engine_ops.check_dropout, N=9, F=44),
}
MISTAKES = [
    ("product_wide", "k < end; k +=", "k + WIDE_DEPTH < end; k +=", "product_wide"),
    ("product_wide", "half = WIDE_DEPTH - half", "half = 0u", "product_wide"),
    ("sum_parts", "part < p.parts", "part + 1u < p.parts", "product_wide"),
    ("product", "k < end; k += STEP", "k + STEP < end; k += STEP", "product"),
    ("few_rows", "k < p.inner / WIDTH;", "k + 1u < p.inner / WIDTH;", "few_rows"),
    ("few_rows", "half > 0u; half /= 2u", "half > 1u; half /= 2u", "few_rows in quads"),
    ("few_rows", " + p.epsilon)", ")", "decoding"),
    ("few_rows", "sigmoid(value) * factor", "sigmoid(value)", "decoding"),
    ("norm", " + p.epsilon)", ")", "rms_norm"),
    ("norm", "gradient - gradient_mean", "gradient", "layer_norm"),
    ("columns", "p.accumulate != 0u", "p.accumulate == 2u", "rms_norm"),
    ("embedding", "sum = add_to_pair(sum, ", "sum = vec2(0.0, ", "embedding"),
    ("rope", "-b * sine", "b * sine", "rope"),
    ("rope", "% p.key_heads * 2u", "* 2u", "decoding"),
    ("attention", "i = 1u; i < SPLITS;", "i = 2u; i < SPLITS;", "attention"),
    ("attention", "s < spans[r].y;", "s + 1u < spans[r].y;", "attention"),
    ("attention", "key_sums[o][c] * p.root", "key_sums[o][c]", "attention"),
    ("attention", "start <= s && s <= t", "start < s && s <= t", "attention"),
    ("attention", "(gradients[r] - found.y)", "gradients[r]", "attention"),
    ("attention_wide", "fma(total, factor, sum)", "total + sum", "attention_wide"),
    ("attention_wide", "(s >= begin) & (s <= last));", "s <= last);", "attention_wide"),
    ("attention_wide", "s <= last);", "s < last);", "attention_wide"),
    ("attention_wide", "(own <= vec4(t))", "(own < vec4(t))", "attention_wide"),
    ("attention_wide", "products(y, o) - stat.y", "products(y, o)", "attention_wide"),
    ("attention_wide", "key_sums[4u * 0u + 3u] * p.root", "key_sums[3]", "attention_wide"),
    ("activations", "1.0 - sigma, sigma", "sigma, 1.0 - sigma", "swiglu"),
    ("losses", "select(0.0, 1.0, i32(v) == target_id)", "0.0", "cross_entropy"),
    ("losses", "sigmoid(-z) - p.smoothing", "sigmoid(-z)", "preference"),
    ("dropout", ">= p.threshold", "> 2u * p.threshold", "dropout"),
]


@pytest.mark.parametrize(("file", "right", "wrong", "case"), MISTAKES)
def test_a_mistake_in_a_kernel_fails_the_check_of_its_op(
    engine, monkeypatch, file, right, wrong, case
):
    source = kernels.source.__wrapped__

    def planted(name, *given):
        found = source(name, *given)
        if name != file:
            return found
        assert right in found.text
        return replace(found, text=found.text.replace(right, wrong))

    monkeypatch.setattr(kernels, "source", planted)
    assert any(not row.error <= LIMIT for row in SMALL[case](engine, random=Random(3)))


def test_an_array_of_another_type_than_its_role_is_refused(engine, halves):
    whole, half = engine.zeros((9, 8)), halves.zeros((9, 8), np.float16)
    with pytest.raises(TypeError, match=r"activations\.wgsl: up is float32"):
        halves.swiglu(half, whole, half)
    with pytest.raises(TypeError, match=r"norm\.wgsl reads no float16 in x"):
        halves.rms_norm(RmsNorm(half, whole[0], 1e-5, half, whole[1]))


def test_what_a_kernel_cannot_see_at_once_is_computed_in_parts(engine, monkeypatch):
    monkeypatch.setattr(engine.kernels, "most_bytes", 9_000)
    for check in (
        partial(engine_ops.check_linear, N=37, D=72, columns=100),
        partial(engine_ops.check_embedding, N=70, D=16, V=300),
        partial(check_decode, B=1, S=8, shape=LayerShape(24, 2, 1, 12, 100)),
    ):
        for row in check(engine, random=Random(3)):
            assert row.error <= LIMIT, row
