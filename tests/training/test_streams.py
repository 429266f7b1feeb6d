"""A step's rows depend on seed, stream and step alone, and an epoch covers everything once."""

import numpy as np
import pytest

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import training_flops_per_token
from nanoeuler.training.streams import TextStream, loss_weights, row_order

END = 0


def make_stream(
    tokens, length=8, batch_tokens=24, heads=3, seed=5, name="text", document_mask=True
):
    return TextStream(tokens, length, batch_tokens, (1.0,) * heads, END, document_mask, seed, name)


def documents(count, random):
    """Documents of random lengths; each starts with `</s>`."""
    return np.concatenate(
        [
            np.concatenate([[END], random.integers(1, 50, random.integers(1, 20))])
            for _ in range(count)
        ]
    ).astype(np.int32)


def test_an_epoch_predicts_every_token_once():
    tokens = np.arange(1, 102, dtype=np.int32)  # 101 different ones: 12 rows of 8, one of 5
    stream = make_stream(tokens, batch_tokens=8)
    assert (stream.row_count, stream.rows_per_step) == (13, 1)
    for epoch in range(2):
        targets = np.concatenate(
            [
                stream.rows(step).targets[..., 0].reshape(-1)
                for step in range(epoch * 13, (epoch + 1) * 13)
            ]
        )
        assert sorted(targets[targets >= 0]) == [END, *range(2, 102)]


def test_epochs_differ_in_order_and_seeds_too():
    tokens = np.arange(1, 1001, dtype=np.int32)
    stream = make_stream(tokens, batch_tokens=8)
    first = [stream.rows(step).ids[0, 0] for step in range(stream.row_count)]
    second = [stream.rows(stream.row_count + step).ids[0, 0] for step in range(stream.row_count)]
    other_seed = [
        make_stream(tokens, batch_tokens=8, seed=6).rows(step).ids[0, 0]
        for step in range(stream.row_count)
    ]
    assert sorted(first) == sorted(second) == sorted(other_seed)
    assert first != second
    assert first != other_seed


def test_a_step_does_not_depend_on_the_steps_before_it():
    tokens = documents(100, np.random.default_rng(1))
    walked = make_stream(tokens)
    for step in range(60):
        rows = walked.rows(step)
    fresh = make_stream(tokens).rows(59)
    for name in ("ids", "positions", "starts", "targets", "weights"):
        assert np.array_equal(getattr(rows, name), getattr(fresh, name)), name


def test_targets_stop_at_the_end_of_a_document():
    tokens = np.array([END, 5, 6, END, 7, 8, 9, END, 3], np.int32)
    stream = make_stream(tokens, length=4, batch_tokens=4)
    rows = {tuple(stream.rows(step).ids[0]): stream.rows(step) for step in range(3)}
    first = rows[(END, 5, 6, END)]
    assert first.targets[0].tolist() == [[5, 6, END], [6, END, -1], [END, -1, -1], [7, 8, 9]]
    assert first.starts[0].tolist() == [0, 0, 0, 3]
    assert first.positions[0].tolist() == [0, 1, 2, 0]
    last = rows[(3, END, END, END)]  # filled up; the text's last token predicts the end
    assert last.targets[0].tolist() == [[END, -1, -1], [-1] * 3, [-1] * 3, [-1] * 3]


def test_without_the_mask_a_row_is_one_document():
    tokens = np.array([END, 5, END, 6, 7, 8, 9, 9], np.int32)
    rows = make_stream(tokens, length=8, batch_tokens=8, document_mask=False).rows(0)
    assert rows.starts.max() == 0
    assert rows.positions[0].tolist() == list(range(8))


def test_parts_of_rows_are_seen_by_themselves_until_a_step():
    tokens = documents(20, np.random.default_rng(3))
    whole = make_stream(tokens)
    short = TextStream(tokens, 8, 24, (1.0,) * 3, END, True, 5, "text", short_rows_until=6)
    for step, part in enumerate([1, 1, 2, 2, 4, 4, 8]):
        expected, found = whole.rows(step), short.rows(step)
        expected.starts = np.maximum(expected.starts, np.arange(8) // part * part)
        expected.positions = np.arange(8) - expected.starts
        for one, other in zip(expected.arrays, found.arrays, strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_sum_to_one_and_give_each_head_its_share():
    targets = np.array([[[4, -1], [5, -1]], [[6, 7], [-1, -1]]])
    weights = loss_weights(targets, (3.0, 1.0))
    assert weights.sum() == np.float32(1)
    assert weights[..., 0].sum() == np.float32(0.75)
    assert np.array_equal(weights > 0, targets >= 0)


def test_a_head_without_targets_leaves_its_share():
    targets = np.array([[[4, -1], [5, -1]]])
    assert loss_weights(targets, (1.0, 1.0)).sum() == np.float32(1)


@pytest.mark.parametrize("stream", ["pretrain", "sft", "dpo"])
def test_no_two_epochs_have_the_same_order(stream):
    orders = {row_order(1, stream, epoch, 50).tobytes() for epoch in range(20)}
    assert len(orders) == 20


def test_flops_count_the_keys_that_each_token_sees():
    config = ModelConfig.from_dict({"preset": "small", "context": 8, "mtp_heads": 3})
    # two rows: documents of 3 and 5 tokens, and one of 8
    tokens = np.array([END, 5, 6, END, 7, 8, 9, 4, END, 3, 5, 6, 7, 8, 9, 4], np.int32)
    whole = make_stream(tokens, batch_tokens=16, document_mask=False).rows(0)
    assert whole.training_flops(config) == 16 * training_flops_per_token(config, 8)
    masked = make_stream(tokens, batch_tokens=16).rows(0)
    assert masked.training_flops(config) == sum(
        length * training_flops_per_token(config, length) for length in (3, 5, 8)
    )
