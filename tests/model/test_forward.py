"""The forward pass against an independent implementation, and what a token can and cannot see."""

import numpy as np
import pytest
from slow_transformer import slow_logits

from nanoeuler.model.checks.model_gradients import TINY
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.transformer import Batch

SHAPES = {
    "grouped heads, K = 3": {"head_size": 8},
    "full heads, step size 0.5": {"kv_heads": 4, "step_size": 0.5, "head_size": 8},
    "one key/value head, tied, head size apart from dim / heads": {
        "kv_heads": 1,
        "tied": True,
        "head_size": 6,
    },
    "K = 1, narrow rotary base, three layers": {
        "mtp_heads": 1,
        "rope_theta": 50.0,
        "layers": 3,
        "head_size": 8,
    },
    "tied, K = 1, wide rotary base": {
        "tied": True,
        "mtp_heads": 1,
        "layers": 1,
        "head_size": 8,
        "rope_theta": 5e5,
    },
}
"""Heads have more than two elements: two are turned by one angle for each position, whatever the
rotary base."""


def nested_lists(model):
    buffer = FlatBuffer(model.config, model.parameters)
    return {tensor.name: buffer[tensor.name].tolist() for tensor in buffer.table}


def all_logits(model, buffers):
    return model.heads.logits(model.weights.heads, buffers)


def random_ids(rows, length, seed=3, vocabulary=TINY["vocab_size"]):
    return np.random.default_rng(seed).integers(0, vocabulary, (rows, length)).astype(np.int32)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_all_heads_are_those_of_the_slow_transformer(make_model, make_batch, shape):
    model = make_model(**SHAPES[shape])
    ids = random_ids(2, 7)
    logits = all_logits(model, model.forward(make_batch(ids), training=True)).reshape(
        2, 7, model.config.mtp_heads, -1
    )
    expected = np.array(
        [slow_logits(model.config, nested_lists(model), row) for row in ids.tolist()]
    )
    # float64; sums are taken in another order
    np.testing.assert_allclose(logits, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rotary_base_is_seen_in_every_shape(make_model, make_batch, shape):
    fields = {"rope_theta": 10_000.0} | SHAPES[shape]
    batch = make_batch(random_ids(2, 7))
    model, other = (
        make_model(**fields | {"rope_theta": f * fields["rope_theta"]}) for f in (1, 1.1)
    )
    logits, others = (all_logits(m, m.forward(batch, training=True)) for m in (model, other))
    assert np.linalg.norm(others - logits) > 1e-4 * np.linalg.norm(logits)


def test_float32_follows_the_slow_transformer_within_its_rounding(make_model, make_batch):
    model = make_model(dtype=np.float32)
    ids = random_ids(2, 7)
    logits = all_logits(model, model.forward(make_batch(ids), training=True)).reshape(2, 7, 3, -1)
    expected = np.array(
        [slow_logits(model.config, nested_lists(model), row) for row in ids.tolist()]
    )
    assert np.linalg.norm(logits - expected) < 2e-6 * np.linalg.norm(expected)


def test_documents_packed_in_a_row_give_what_each_gives_alone(make_model):
    model = make_model()
    ids = random_ids(1, 9)
    starts = np.array([[0, 0, 0, 3, 3, 3, 3, 7, 7]], np.int32)
    batch = Batch(ids, np.arange(9, dtype=np.int32) - starts, starts)
    logits = all_logits(model, model.forward(batch, training=True)).reshape(9, 3, -1)
    tensors = nested_lists(model)
    documents = [ids[0, a:b].tolist() for a, b in ((0, 3), (3, 7), (7, 9))]
    expected = np.concatenate([slow_logits(model.config, tensors, each) for each in documents])
    np.testing.assert_allclose(logits, expected, rtol=1e-11, atol=1e-12)


def test_inference_and_training_buffers_give_the_same_bits(make_model, make_batch):
    model = make_model()
    batch = make_batch(random_ids(2, 5))
    hidden = model.forward(batch, training=True).stream.normed.copy()
    assert np.array_equal(model.forward(batch, training=False).stream.normed, hidden)


def test_head_0_alone_is_the_first_of_all_heads(make_model, make_batch):
    model = make_model()
    buffers = model.forward(make_batch(random_ids(2, 5)), training=True)
    np.testing.assert_allclose(
        model.first_logits(buffers.stream.normed),
        all_logits(model, buffers)[::3],
        rtol=1e-12,
        atol=1e-13,
    )


def test_a_changed_token_changes_nothing_before_it(make_model, make_batch):
    model = make_model()
    ids = random_ids(1, 7)
    before = model.forward(make_batch(ids)).stream.normed.copy()
    ids[0, 4] = (ids[0, 4] + 1) % TINY["vocab_size"]
    after = model.forward(make_batch(ids)).stream.normed
    assert np.array_equal(after[:4], before[:4])
    assert (after[4:] != before[4:]).any(axis=1).all()


def test_a_changed_token_changes_nothing_in_the_next_document(make_model):
    model = make_model()
    ids = random_ids(2, 7)
    starts = np.tile(np.array([0, 0, 0, 3, 3, 3, 3], np.int32), (2, 1))
    batch = Batch(ids, np.arange(7, dtype=np.int32) - starts, starts)
    before = model.forward(batch).stream.normed.reshape(2, 7, -1).copy()
    ids[0, 1] = (ids[0, 1] + 1) % TINY["vocab_size"]
    after = model.forward(batch).stream.normed.reshape(2, 7, -1)
    assert np.array_equal(after[0, 3:], before[0, 3:])
    assert np.array_equal(after[1], before[1])
    assert (after[0, 1:3] != before[0, 1:3]).any(axis=1).all()
    without_borders = Batch(ids, batch.positions, np.zeros_like(starts))
    after = model.forward(without_borders).stream.normed.reshape(2, 7, -1)
    assert (after[0, 3:] != before[0, 3:]).any(axis=1).all()  # the test can tell


def test_rows_may_be_longer_than_the_context(make_model, make_batch):
    short, long = make_model(context=4), make_model(context=64)
    batch = make_batch(random_ids(1, 12))
    assert np.array_equal(short.forward(batch).stream.normed, long.forward(batch).stream.normed)
