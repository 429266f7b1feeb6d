"""Layers with sliding windows, without rotary positions, with biases of q, k and v, with soft caps,
and with norms behind them: the kinds that released models have."""

import json
from dataclasses import replace

import numpy as np
import pytest
from slow_transformer import slow_logits
from test_forward import all_logits, nested_lists, random_ids
from test_rope_scaling import SCALINGS

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig, check_growth
from nanoeuler.model.transformer import Batch, Transformer

KINDS = {
    "biases": {"qkv_bias": True},
    "a window": {"windows": [7]},
    "a window in every second layer": {"windows": [5, 0], "layers": 3},
    "a layer without rotation": {"rope_layers": [1, 0]},
    "all of it": {
        "qkv_bias": True,
        "windows": [0, 1, 6],
        "rope_layers": [1, 0],
        "layers": 4,
        "qk_norm": "weighted",
    },
    "GEGLU": {"activation": "geglu"},
    "norms behind blocks": {"post_norms": True},
    "a scaled embedding": {"embedding_scale": 1.7},
    "another base in windows": {"windows": [5, 0], "window_rope_theta": 3.0},
    "a cap of scores": {"attention_cap": 0.3},
    "a cap of logits": {"logit_cap": 0.2},
    "scores of another scale": {"query_scalar": 2.0},
    "scores of another scale, scaled positions": {
        "query_scalar": 31.5,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_context": 8},
        "windows": [5, 0],
        "window_rope_theta": 3.0,
    },
    "as Gemma 2": {
        "activation": "geglu",
        "post_norms": True,
        "embedding_scale": 2.8,
        "tied": True,
        "windows": [5, 0],
        "layers": 3,
        "attention_cap": 0.5,
        "logit_cap": 0.3,
        "query_scalar": 9.0,
    },
    "as Gemma 3": {
        "activation": "geglu",
        "post_norms": True,
        "embedding_scale": 2.8,
        "tied": True,
        "qk_norm": "weighted",
        "windows": [5, 5, 0],
        "layers": 4,
        "window_rope_theta": 20.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    **{f"scaled positions, {name}": {"rope_scaling": each} for name, each in SCALINGS.items()},
}
FIELDS = {"head_size": 8, "rope_theta": 50.0, "context": 64}


def fast(model, threads=1):
    parameters = model.parameters.astype(np.float32)
    return Transformer(model.config, parameters, CpuBackend(threads))


@pytest.mark.parametrize("name", KINDS)
def test_a_model_computes_what_the_slow_transformer_does(name, make_model, make_batch):
    model = make_model(**FIELDS | KINDS[name])
    ids = random_ids(1, 40)
    logits = all_logits(model, model.forward(make_batch(ids), training=True)).reshape(40, 3, -1)
    expected = slow_logits(model.config, nested_lists(model), ids[0].tolist())
    np.testing.assert_allclose(logits, np.array(expected), rtol=1e-11, atol=1e-12)
    for threads in (1, 3):
        engine = fast(model, threads)
        found = all_logits(engine, engine.forward(make_batch(ids), training=True))
        np.testing.assert_allclose(found.reshape(40, 3, -1), logits, rtol=1e-4, atol=1e-4)
    same = ("layers", "qk_norm", "tied")
    fields = FIELDS | {key: KINDS[name][key] for key in same if key in KINDS[name]}
    plain = make_model(**fields)
    others = all_logits(plain, plain.forward(make_batch(ids), training=True)).reshape(40, 3, -1)
    assert np.linalg.norm(others - logits) > 1e-3 * np.linalg.norm(logits)


@pytest.mark.parametrize("name", KINDS)
def test_documents_in_a_row_are_as_if_alone(name, make_model, make_batch):
    model = make_model(**FIELDS | KINDS[name])
    ids = random_ids(2, 30)
    cuts = np.array([[11], [24]], np.int32)
    starts = np.where(np.arange(30) < cuts, 0, cuts).astype(np.int32)
    positions = np.arange(30, dtype=np.int32) - starts
    for engine, close in ((model, 1e-10), (fast(model), 1e-4)):
        packed = all_logits(engine, engine.forward(Batch(ids, positions, starts), training=True))
        packed = packed.reshape(2, 30, -1).copy()
        for row, cut in enumerate(cuts[:, 0]):
            for part in (slice(0, cut), slice(cut, 30)):
                alone = make_batch(ids[row : row + 1, part])
                logits = all_logits(engine, engine.forward(alone, training=True))
                found = packed[row, part]
                np.testing.assert_allclose(found, logits.reshape(found.shape), close, close)


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_gives_the_same_however_tokens_come(name, make_model, make_batch):
    model = make_model(**FIELDS | KINDS[name])
    ids = random_ids(2, 40)
    buffers = model.forward(make_batch(ids))
    expected = model.first_logits(buffers.stream.normed).reshape(2, 40, -1).copy()
    for engine in (model, fast(model)):
        close = {"rtol": 1e-9} if engine is model else {"rtol": 1e-4, "atol": 1e-4}
        cache = engine.new_cache(2, 40)  # full at the end
        held = 0
        for count in (21, 1, 1, 3, 9, 1, 4):
            logits = extend(engine, cache, ids[:, held : held + count])
            held += count
            np.testing.assert_allclose(logits, expected[:, held - 1], **close)
        assert held == 40
        # rows of different lengths, whose padding goes beyond the cache
        cache = engine.new_cache(2, 40)
        extend(engine, cache, ids[:, :36], np.array([36, 20], np.int32))
        tokens = np.stack([np.resize(ids[0, 36:38], 12), ids[1, 20:32]])
        logits = extend(engine, cache, tokens, np.array([2, 12], np.int32))
        np.testing.assert_allclose(logits, expected[[0, 1], [37, 31]], **close)


def test_a_window_as_long_as_the_context_is_none(make_model):
    model = make_model(**FIELDS, windows=[64, 63])
    assert [block.form.window for block in model.blocks[::2]] == [0, 63]
    # but its layer keeps the base of its rotation
    model = make_model(**FIELDS, windows=[64, 0], window_rope_theta=3.0)
    assert [block.form.window for block in model.blocks[::2]] == [64, 0]
    assert make_model(**FIELDS, windows=[0, 0]).config == make_model(**FIELDS).config


def test_patterns_that_say_the_same_are_one_model():
    def of(**fields):
        return ModelConfig.from_dict({"preset": "small", "layers": 6} | fields)

    assert of(windows=[8, 0, 8, 0]) == of(windows=[8, 0]) == of(windows=[8, 0, 8, 0, 8, 0, 9])
    assert of(rope_layers=[1, 1]) == of()
    assert of(windows=[0, 0, 0, 0, 8, 8]).windows == (0, 0, 0, 0, 8, 8)
    assert of().to_dict() == ModelConfig.from_dict(of().to_dict()).to_dict()
    assert not {"windows", "rope_layers", "qkv_bias"} & set(of().to_dict())
    rich = of(windows=[8, 0], rope_layers=[1, 0, 1], qkv_bias=True)
    assert ModelConfig.from_dict(json.loads(json.dumps(rich.to_dict()))) == rich


def test_a_window_starts_where_it_says():
    starts = np.array([[0, 0, 0, 3, 3], [0, 0, 0, 0, 0]], np.int32)
    offset = np.array([0, 6], np.int32)
    for engine in (ReferenceBackend(np.float64), CpuBackend(1)):
        out = np.empty((2, 5), np.int32)
        engine.window_starts(starts, offset, 2, 8, out)
        assert out.tolist() == [[0, 0, 1, 3, 3], [5, 6, 7, 8, 8]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"windows": 8}, "model.windows is 8: it must be a list of whole numbers"),
        ({"windows": [8.0]}, "model.windows is [8.0]: it must be a list of whole numbers"),
        ({"windows": [-1]}, "model.windows is [-1]: it must be numbers from 0 to 16777216, one"),
        ({"windows": [2**25]}, "model.windows is [33554432]"),
        ({"rope_layers": [1, 2]}, "model.rope_layers is [1, 2]: it must be numbers from 0 to 1"),
        ({"rope_layers": [True]}, "model.rope_layers is [True]"),
        ({"qkv_bias": 1}, "model.qkv_bias is 1: it must be true or false"),
        (
            {"post_norms": True, "step_size": 0.5},
            "go with model.step_size 1 and an MLP with a gate",
        ),
        (
            {"post_norms": True, "activation": "relu2"},
            "go with model.step_size 1 and an MLP with a",
        ),
        ({"embedding_scale": 0.0}, "model.embedding_scale must be above 0, and model.window_rope_"),
        (
            {"attention_cap": 0},
            "model.attention_cap is 0: it must be above 0; without it, leave it",
        ),
        ({"attention_cap": -50.0}, "model.attention_cap is -50.0: it must be above 0"),
        ({"attention_cap": float("nan")}, "model.attention_cap is nan: it must be a number of at"),
        ({"attention_cap": "50"}, "model.attention_cap is '50': it must be a number of at most"),
        (
            {"logit_cap": 0.0},
            "model.logit_cap is 0.0: it must be above 0; without it, leave it out",
        ),
        ({"logit_cap": float("inf")}, "model.logit_cap is inf: it must be a number of at most"),
        ({"logit_cap": True}, "model.logit_cap is True: it must be a number of at most"),
        ({"query_scalar": -1}, "model.query_scalar is -1: it must be above 0"),
        (
            {"query_scalar": 9.0, "rope_layers": [1, 0]},
            "which layers without rotary positions don't",
        ),
        (
            {"preset": "gpt2-tiny", "logit_cap": 30.0},
            "model.logit_cap is 30.0, but model.family gpt",
        ),
        ({"window_rope_theta": 1.0}, "and model.window_rope_theta above 1, or 0"),
        ({"preset": "gpt2-tiny", "post_norms": True}, "model.post_norms is True, but model.family"),
        ({"preset": "gpt2-tiny", "windows": [8]}, "model.windows is (8,), but model.family gpt2"),
        ({"preset": "gpt2-tiny", "qkv_bias": True}, "model.qkv_bias is True, but model.family"),
        ({"preset": "gpt2-tiny", "rope_layers": [0]}, "model.rope_layers is (0,), but model.fami"),
    ],
)
def test_a_bad_field_gets_a_sentence_that_names_it(fields, words):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict({"preset": "small"} | fields)
    assert words in str(caught.value)


def test_layers_of_several_kinds_do_not_grow():
    config = ModelConfig.from_dict({"preset": "small", "windows": [8, 0]})
    with pytest.raises(UserError, match=r"make layers of 2 kinds, which would change places"):
        check_growth(config, [5], 9)
    check_growth(replace(config, windows=(8,)), [5], 9)
