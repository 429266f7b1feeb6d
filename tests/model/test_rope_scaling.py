"""Scaled rotary positions: their frequencies, whole models with them, and bad values."""

import json
import math

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.rotary import rope_arguments, rope_scale

LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "original_context": 24,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"type": "yarn", "factor": 4.0, "original_context": 24, "beta_fast": 2.0, "beta_slow": 0.5}
SCALINGS = {
    "linear": {"type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn between pairs": YARN | {"truncate": False, "attention_factor": 0.9},
}
FIELDS = {"head_size": 8, "rope_theta": 50.0, "context": 64}
"""Four pairs, of which each scaling slows some and keeps or blends others."""

RELEASED = {
    "Llama 3.1": (
        {"head_size": 128, "rope_theta": 500_000.0},
        LLAMA3 | {"original_context": 8192},
        {0: 1.0, 28: 3.2114461e-3, 32: 5.2484602e-4, 36: 7.7846554e-5, 60: 5.6770881e-7},
        1.0,
    ),
    "Llama 3.2": (
        {"head_size": 64, "rope_theta": 500_000.0},
        LLAMA3 | {"original_context": 8192, "factor": 32.0},
        {0: 1.0, 12: 7.2926651e-3, 16: 4.2955671e-4, 20: 8.5702559e-6, 28: 3.2229329e-7},
        1.0,
    ),
    "Qwen3": (
        {"head_size": 128, "rope_theta": 1_000_000.0},
        {"type": "yarn", "factor": 4.0, "original_context": 32_768},
        {0: 1.0, 20: 1.3335215e-2, 28: 1.8482766e-3, 36: 1.7984115e-4, 60: 5.9284343e-7},
        1.138629436111989,
    ),
}
"""Shape and scaling of released models → some frequencies as transformers 5.24 computes them, in
float32, and its factor on cosines and sines."""


@pytest.mark.parametrize("name", RELEASED)
def test_the_frequencies_of_released_models_are_those_of_transformers(name):
    fields, scaling, frequencies, factor = RELEASED[name]
    config = ModelConfig.from_dict({"preset": "small"} | fields | {"rope_scaling": scaling})
    scale_I, found = rope_scale(config)
    for pair, frequency in frequencies.items():
        plain = config.rope_theta ** (-2 * pair / config.head_size)
        assert plain * scale_I[pair] == pytest.approx(frequency, rel=2e-6)
    assert found == factor


def test_a_table_that_grows_keeps_its_scaling(make_model):
    model = make_model(**FIELDS, rope_scaling=YARN)
    before = model.rotary.whole
    model.rotary.need(1 + len(before[0]))
    expected = model.backend.rope_table(len(model.rotary.whole[0]), *rope_arguments(model.config))
    for grown, whole, first in zip(model.rotary.whole, expected, before, strict=True):
        np.testing.assert_array_equal(grown, whole)
        np.testing.assert_array_equal(grown[: len(first)], first)


def test_a_model_without_scaling_is_described_as_before():
    config = ModelConfig.from_dict({"preset": "small"})
    assert "rope_scaling" not in config.to_dict()
    assert rope_arguments(config) == (32, 10_000.0)
    angles = np.arange(99)[:, None] * 10_000.0 ** (-np.arange(0, 32, 2) / 32)
    cos, sin = ReferenceBackend(np.float32).rope_table(99, *rope_arguments(config))
    np.testing.assert_array_equal(cos, np.cos(angles).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angles).astype(np.float32))


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_survives_json(name):
    config = ModelConfig.from_dict({"preset": "small", "rope_scaling": SCALINGS[name]})
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) != hash(ModelConfig.from_dict({"preset": "small"}))


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (3, "model.rope_scaling is 3: it must be a mapping with a type, which is linear, llama3"),
        ({"factor": 2}, "model.rope_scaling.type is None, which a nanoeuler model does not have; "),
        ({"type": []}, "model.rope_scaling.type is []"),
        ({"type": "dynamic", "factor": 2}, "because its frequencies change with the length of a"),
        ({"type": "longrope", "factor": 2}, "because it has one set of frequencies for short"),
        ({"type": "linear"}, "model.rope_scaling lacks factor, which linear needs"),
        ({"type": "linear", "factor": 0}, "model.rope_scaling.factor is 0: it must be a number fr"),
        ({"type": "linear", "factor": -2.0}, "factor is -2.0"),
        (
            {"type": "linear", "factor": 0.5},
            "factor is 0.5: it must be a number from 1 to 16777216",
        ),
        ({"type": "linear", "factor": math.nan}, "factor is nan"),
        ({"type": "linear", "factor": 1e30}, "factor is 1e+30"),
        ({"type": "linear", "factor": True}, "factor is True"),
        ({"type": "linear", "factor": "2"}, "factor is '2'"),
        ({"type": "linear", "factor": 2, "beta_fast": 3}, "beta_fast is no key of the type linear"),
        (LLAMA3 | {"original_context": 0}, "original_context is 0: it must be a whole number from"),
        (LLAMA3 | {"original_context": 8192.0}, "original_context is 8192.0"),
        (LLAMA3 | {"original_context": None}, "lacks original_context, which llama3 needs"),
        (LLAMA3 | {"low_freq_factor": 4}, "low_freq_factor is 4: it must be below high_freq_fact"),
        (LLAMA3 | {"high_freq_factor": -1}, "high_freq_factor is -1: it must be a number above 0"),
        (YARN | {"beta_slow": 2}, "beta_slow is 2: it must be below beta_fast, which is 2.0"),
        (YARN | {"attention_factor": 0}, "attention_factor is 0"),
        (YARN | {"truncate": "no"}, "truncate is 'no': it must be true or false"),
        (YARN | {"mscale": 1}, "mscale is no key of the type yarn; it has type, factor, orig"),
    ],
)
def test_a_bad_scaling_gets_a_sentence_that_names_its_key(scaling, words):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict({"preset": "small", "rope_scaling": scaling})
    assert words in str(caught.value)


def test_learned_positions_are_not_scaled():
    with pytest.raises(UserError, match=r"model.rope_scaling is .*, but model.family"):
        ModelConfig.from_dict({"preset": "gpt2-tiny", "rope_scaling": SCALINGS["linear"]})
