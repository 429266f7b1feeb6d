"""Preferences: the loss, the rows of pairs, the measurements, and a run that survives kill -9."""

import json
import math

import numpy as np
import pytest

from nanoeuler.backend.records import PreferencePairs
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Dpo
from nanoeuler.model.checks.comparison import compare, finite_difference
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.objectives import PreferenceLoss
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.pairs import PairStream, encode_pairs, reply_sums
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.stages.dpo import measure
from nanoeuler.training.state import TrainingState

CONTEXT = 300
PAIRS = [
    {"instruction": "Say hen.", "input": "", "chosen": "hen, please", "rejected": "hen"},
    {
        "instruction": "Name it.",
        "input": "a fox",
        "chosen": "It is a fox.",
        "rejected": "The fox is near the lake.\nIt is a fox.",
    },
    {"instruction": "Count.", "input": "", "chosen": "one two three", "rejected": "one three two"},
    {
        "instruction": "More.",
        "input": "",
        "chosen": "four",
        "rejected": "no",
        "earlier": [{"instruction": "Go.", "output": "one two three"}],
    },
]
MODEL = ModelConfig(
    vocab_size=288, dim=12, layers=1, heads=2, kv_heads=1, ffn=16, context=CONTEXT, mtp_heads=2
)


def write(path, pairs):
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


@pytest.fixture
def make_stream(tokenizer, tmp_path):
    def make(pairs=PAIRS, by_length=False, scale=0.5, batch_tokens=4 * CONTEXT):
        encoded, _ = encode_pairs(
            write(tmp_path / "pairs.jsonl", pairs), tokenizer, "chat", CONTEXT
        )
        settings = Dpo(beta=scale, loss="simpo" if by_length else "sigmoid")
        return PairStream(encoded, settings, MODEL, batch_tokens, tokenizer.end_id, 1, "dpo")

    return make


def make_model(dtype=np.float64, seed=1):
    return Transformer(
        MODEL, initial_parameters(MODEL, seed).astype(dtype) * 5, ReferenceBackend(dtype)
    )


def set_reference(stream, model):
    found = [
        (reply_sums(logprobs, rows.further[0]), logprobs)
        for rows, logprobs in all_logprobs(model, stream)
    ]
    stream.reference = np.concatenate([sums for sums, _ in found])
    return np.concatenate([logprobs for _, logprobs in found])


# ---- rows


def test_the_supervised_tokens_of_packed_pairs_are_the_replies(tokenizer, make_stream):
    stream = make_stream()
    assert stream.row_count < len(PAIRS)
    rows = stream.frame_rows(np.arange(stream.row_count))
    spans, _, _, shares = rows.further
    found = []
    for row, slot in zip(*np.nonzero(shares), strict=True):
        replies = []
        for side in range(2):
            targets = rows.targets[row, slice(*spans[row, slot, side : side + 2]), 0]
            targets = targets[targets >= 0]
            assert targets[-1] == tokenizer.end_id
            replies.append(tokenizer.decode(targets[:-1]))
        found.append(tuple(replies))
    assert sorted(found) == sorted((pair["chosen"], pair["rejected"]) for pair in PAIRS)
    assert (rows.targets[..., 1:] == -1).all()
    assert shares.sum() == pytest.approx(1)


def test_both_sides_have_the_whole_prompt_in_front_of_them_and_nothing_else(tokenizer, make_stream):
    stream = make_stream()
    rows = stream.frame_rows(np.arange(stream.row_count))
    texts = []
    for row in range(stream.row_count):
        for start in np.unique(rows.starts[row]):
            inside = rows.starts[row] == start
            if (rows.targets[row, inside, 0] >= 0).any():
                assert rows.positions[row, inside].tolist() == list(range(inside.sum()))
                texts.append(tokenizer.decode(rows.ids[row, inside][1:]))
    fill, end = TEMPLATES["chat"], tokenizer.decode([tokenizer.end_id])
    expected = []
    for pair in PAIRS:
        before = "".join(
            fill(turn["instruction"]) + turn["output"] + end for turn in pair.get("earlier", [])
        )
        expected += [
            before + fill(pair["instruction"], pair["input"]) + pair[side]
            for side in ("chosen", "rejected")
        ]
    assert sorted(texts) == sorted(expected)


def test_pairs_without_room_or_difference_are_left_out_and_counted(tokenizer, tmp_path):
    long = "one two three " * 100
    pairs = [
        {"instruction": long, "input": "", "chosen": "yes", "rejected": "no"},
        {"instruction": "Count.", "input": "", "chosen": long + "four", "rejected": long + "five"},
        {"instruction": "Count.", "input": "", "chosen": "one", "rejected": long},
        PAIRS[0],
    ]
    kept, fit = encode_pairs(write(tmp_path / "pairs.jsonl", pairs), tokenizer, "chat", CONTEXT)
    assert (fit.pairs, fit.whole, fit.prompt_too_long, fit.alike_when_cut, len(kept)) == (
        4,
        1,
        1,
        1,
        2,
    )


# ---- the loss


def step_loss(state, rows, micro_batch_rows):
    state.stage(rows)
    state.started_weight = 1.0
    state.compute_gradients(micro_batch_rows)
    return float(state.results[0])


def make_state(objective, dtype=np.float64, seed=1):
    optimizer = AdamW(0.9, 0.95, 1e-8, 0.0, 1e9)
    return TrainingState(
        MODEL,
        ReferenceBackend(dtype),
        initial_parameters(MODEL, seed) * 5,
        optimizer,
        objective=objective,
    )


def test_empty_rows_change_nothing(make_stream):
    stream = make_stream()
    set_reference(stream, make_model(np.float32))
    rows, states = stream.rows(0), [make_state(PreferenceLoss(0.0, 0.1), seed=2) for _ in "ab"]
    padded = rows.padded(len(rows.ids) + 2)
    whole, filled = (
        step_loss(state, given, len(given.ids))
        for state, given in zip(states, (rows, padded), strict=True)
    )
    assert filled == pytest.approx(whole, rel=1e-9)
    np.testing.assert_allclose(states[1].gradients, states[0].gradients, rtol=1e-5, atol=1e-9)


def test_a_policy_that_is_the_reference_has_loss_ln_2_and_margin_0(make_stream):
    stream, model = make_stream(), make_model(np.float32)
    tokens = set_reference(stream, model)
    assert measure(model, stream, PreferenceLoss(0.0, 0.0), tokens) == {
        "loss": math.log(2),
        "accuracy": 0.5,
        "margin": 0.0,
        "chosen_reward": 0.0,
        "rejected_reward": 0.0,
        "drift": 0.0,
    }
    logprobs = -np.random.default_rng(1).random((1, 9, 2))
    weights, losses = np.zeros((1, 9, 2)), np.zeros(2)
    spans = np.array([[[0, 4, 9]]], np.int32)
    pairs = PreferencePairs(
        spans, reply_sums(logprobs[..., 0], spans), np.full((1, 1, 2), 0.5), np.ones((1, 1))
    )
    ReferenceBackend().preference(logprobs, pairs, 0.0, 0.0, weights, losses)
    assert losses.tolist() == [math.log(2)] * 2
    assert weights[0, :, 0].tolist() == [0.25] * 4 + [-0.25] * 5


@pytest.mark.parametrize(
    ("by_length", "margin", "smoothing"), [(False, 0.0, 0.0), (False, 0.0, 0.1), (True, 0.5, 0.0)]
)
def test_the_gradient_of_the_whole_loss_agrees_with_finite_differences(
    make_stream, by_length, margin, smoothing
):
    stream = make_stream(by_length=by_length)
    set_reference(stream, make_model(seed=2))
    rows = stream.frame_rows(np.arange(stream.row_count))
    state = make_state(PreferenceLoss(margin, smoothing))
    loss = step_loss(state, rows, 1)
    parameters, gradients = (
        FlatBuffer(MODEL, array) for array in (state.parameters, state.gradients.copy())
    )
    expected = by_hand(stream, rows, state, margin, smoothing)
    assert loss == pytest.approx(expected, rel=1e-6)  # its log-probabilities are in float32
    random = np.random.default_rng(1)
    for tensor in parameters.table:
        values = (
            parameters[tensor.name].reshape(-1)
            if parameters[tensor.name].flags.c_contiguous
            else parameters[tensor.name]
        )
        if tensor.name.startswith("mtp_heads"):
            assert not gradients[tensor.name].any()
            continue
        places = random.choice(values.size, min(6, values.size), replace=False)
        analytic = gradients[tensor.name].reshape(-1)[places]
        numeric = np.array(
            [
                derivative(
                    lambda: step_loss(state, rows, 1), values, np.unravel_index(place, values.shape)
                )
                for place in places
            ]
        )
        assert compare("dpo", tensor.name, analytic, numeric).error < 1e-6, tensor.name


def derivative(function, values, index):
    """The derivative by one element; `finite_difference` gives those by all elements."""
    place = (
        values[index[0] : index[0] + 1]
        if values.ndim == 1
        else values[index[0], index[1] : index[1] + 1]
    )
    return finite_difference(function, place)[0]


def by_hand(stream, rows, state, margin, smoothing):
    """The formulas of the papers, on log-probabilities computed without the rows' weights."""
    total = 0.0
    (spans, reference, _, shares) = rows.further
    logprobs = np.concatenate(
        [
            logprobs.astype(np.float64)
            for _, logprobs in all_logprobs(
                Transformer(MODEL, state.parameters, state.backend), stream
            )
        ]
    )
    for row, slot in zip(*np.nonzero(shares), strict=True):
        rewards = []
        for side in range(2):
            place = slice(*spans[row, slot, side : side + 2])
            log_ratio = float(logprobs[row, place].sum()) - reference[row, slot, side]
            tokens = int((rows.targets[row, place, 0] >= 0).sum())
            rewards.append(stream.scale * (log_ratio / tokens if stream.by_length else log_ratio))
        z = rewards[0] - rewards[1] - margin
        total += shares[row, slot] * (
            -(1 - smoothing) * math.log(1 / (1 + math.exp(-z)))
            - smoothing * math.log(1 / (1 + math.exp(z)))
        )
    return total


def test_micro_batches_change_a_step_only_by_rounding(make_stream):
    stream = make_stream(PAIRS * 3)
    set_reference(stream, make_model(seed=2))
    rows = stream.frame_rows(np.arange(stream.row_count))
    assert stream.row_count >= 2
    whole, parts = make_state(PreferenceLoss(0.0, 0.0)), make_state(PreferenceLoss(0.0, 0.0))
    assert step_loss(whole, rows, stream.row_count) == pytest.approx(
        step_loss(parts, rows, 1), rel=1e-10
    )
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-6, atol=1e-12)


def test_it_learns_to_prefer_the_chosen_replies(make_stream):
    stream = make_stream()
    tokens = set_reference(stream, make_model(np.float32))
    state, objective = make_state(PreferenceLoss(0.0, 0.0), np.float32), PreferenceLoss(0.0, 0.0)
    for step in range(15):
        state.train_step(stream.rows(step), 1, 1e-2)
    found = measure(state.model, stream, objective, tokens)
    assert found["accuracy"] == 1
    assert found["loss"] < 0.3
    assert found["chosen_reward"] - found["rejected_reward"] == pytest.approx(found["margin"])
    assert found["drift"] > 0
