"""Preferences: the loss, the rows of pairs, the measurements, and a run that survives kill -9."""

import json
import math
import re
import shutil

import numpy as np
import pytest

from nanoeuler.backend.records import PreferencePairs
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.checks.comparison import TOLERANCE, compare, finite_difference
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.dpo import computed_by, measure, read_reference
from nanoeuler.training.objectives import PreferenceLoss
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.pairs import PairStream, encode_pairs, reply_sums
from nanoeuler.training.records import encode_records
from nanoeuler.training.scoring import all_logprobs
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


@pytest.fixture(scope="module")
def tokenizer(data):
    return Tokenizer.load(data / "tokenizer.json")


def write(path, pairs):
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


@pytest.fixture
def make_stream(tokenizer, tmp_path):
    def make(pairs=PAIRS, by_length=False, scale=0.5, batch_tokens=4 * CONTEXT):
        encoded, _ = encode_pairs(
            write(tmp_path / "pairs.jsonl", pairs), tokenizer, "chat", CONTEXT
        )
        return PairStream(
            encoded,
            CONTEXT,
            batch_tokens,
            MODEL.mtp_heads,
            tokenizer.end_id,
            1,
            "dpo",
            scale,
            by_length,
        )

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
    assert stream.rows < len(PAIRS)
    rows = stream.frame_rows(np.arange(stream.rows))
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
    rows = stream.frame_rows(np.arange(stream.rows))
    texts = []
    for row in range(stream.rows):
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
    rows, states = stream.step(0), [make_state(PreferenceLoss(0.0, 0.1), seed=2) for _ in "ab"]
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
    rows = stream.frame_rows(np.arange(stream.rows))
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
        assert compare("dpo", tensor.name, analytic, numeric).error < TOLERANCE, tensor.name


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
    rows = stream.frame_rows(np.arange(stream.rows))
    assert stream.rows >= 2
    whole, parts = make_state(PreferenceLoss(0.0, 0.0)), make_state(PreferenceLoss(0.0, 0.0))
    assert step_loss(whole, rows, stream.rows) == pytest.approx(
        step_loss(parts, rows, 1), rel=1e-10
    )
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-6, atol=1e-12)


def test_it_learns_to_prefer_the_chosen_replies(make_stream):
    stream = make_stream()
    tokens = set_reference(stream, make_model(np.float32))
    state, objective = make_state(PreferenceLoss(0.0, 0.0), np.float32), PreferenceLoss(0.0, 0.0)
    for step in range(15):
        state.train_step(stream.step(step), 1, 1e-2)
    found = measure(state.model, stream, objective, tokens)
    assert found["accuracy"] == 1
    assert found["loss"] < 0.3
    assert found["chosen_reward"] - found["rejected_reward"] == pytest.approx(found["margin"])
    assert found["drift"] > 0


# ---- the stage


def test_dpo_resumes_to_the_bit_after_kill_9(trainer, tuned):
    said = trainer.run("dpo", "--parent", str(tuned))
    assert "taken from" not in said
    whole, measured = trainer.weights("dpo"), trainer.metrics("dpo")
    shutil.rmtree(trainer.output / "dpo")
    trainer.config["dpo"]["checkpoint_minutes"] = 0.0001
    for step in (2, 5):
        process = trainer.start_until(step, "dpo", "--parent", str(tuned))
        process.kill()
        process.communicate()
    said = trainer.run("dpo", "--parent", str(tuned))
    assert "log-probabilities of the parent taken from" in said
    assert "going on from step" in said
    assert trainer.weights("dpo") == whole
    validations = [
        [(entry["step"], entry["validation"]) for entry in lines if "validation" in entry]
        for lines in (measured, trainer.metrics("dpo"))
    ]
    assert validations[0] == validations[1]
    assert set(validations[0][0][1]) == {
        "loss",
        "accuracy",
        "margin",
        "chosen_reward",
        "rejected_reward",
        "drift",
    }
    assert validations[0][-1][1]["accuracy"] > 0.9
    saved = load_model(trainer.output / "dpo" / "model")
    assert (saved.stage, saved.template) == ("dpo", "alpaca")
    assert saved.info["preferences"] == {"name": "loud", "licence": "none"}
    assert saved.info["instructions"] == {"name": "words", "licence": "none"}


@pytest.mark.parametrize("changes", [{"loss": "simpo", "beta": 2.0}, {"label_smoothing": 0.1}])
def test_another_loss_trains_afresh_with_the_reference_that_is_there(trainer, tuned, changes):
    trainer.run("dpo", "--parent", str(tuned))
    before = trainer.weights("dpo")
    trainer.config["dpo"] |= changes
    said = trainer.run("dpo", "--parent", str(tuned))
    assert "its checkpoints are kept in" in said
    assert "log-probabilities of the parent taken from" in said
    assert trainer.weights("dpo") != before


def test_a_damaged_reference_is_computed_again(trainer, tuned):
    trainer.run("dpo", "--parent", str(tuned))
    before = trainer.weights("dpo")
    (path,) = (trainer.output / "dpo" / "reference").glob("*/*.safetensors")
    content = path.read_bytes()
    for damaged in (content[:100], content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]):
        path.write_bytes(damaged)
        shutil.rmtree(trainer.output / "dpo" / "checkpoints")
        said = trainer.run("dpo", "--parent", str(tuned))
        assert "computing them again: " in said
        assert "its bytes are not those that the stage dpo wrote" in said
        assert "taken from" not in said
        assert trainer.weights("dpo") == before
        assert path.read_bytes() == content


def test_the_reference_is_kept_by_all_that_its_last_bits_depend_on():
    single, double = (computed_by(ReferenceBackend(kind)) for kind in (np.float32, np.float64))
    assert set(single) == {"engine", "device", "precision", "residual", "revision"}
    assert single != double


@pytest.mark.parametrize("note", ["[]", "{}", "{"])
def test_a_note_of_the_reference_that_is_none_is_no_traceback(tmp_path, note):
    (tmp_path / "reference.json").write_text(note)
    with pytest.raises(UserError):
        read_reference(tmp_path / "logprobs.safetensors")


@pytest.mark.parametrize("context", [20, 90])
def test_a_context_that_holds_few_pairs_stops_before_training(trainer, tuned, context):
    trainer.config["dpo"] |= {"context": context}
    said = trainer.run("dpo", "--parent", str(tuned), status=1)
    assert f"of the pairs fit whole into dpo.context = {context} tokens; raise dpo.context" in said
    assert "Traceback" not in said
    share = float(re.search(r"only ([\d.]+)% of the pairs", said)[1]) / 100
    advice = float(re.search(r"by setting dpo.minimum_fit_share to ([\d.]+)", said)[1])
    # the advice is a share that the stage accepts; the share in the sentence is rounded
    assert share - 0.0015 < advice <= share + 0.0005


def test_instructions_and_preferences_that_are_mistaken_for_each_other_are_refused(
    tmp_path, tokenizer
):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"instruction": "Say it.", "input": "", "output": "It."}))
    message = (
        r"holds no pairs of replies; give the manifest\.json that `nanoeuler preferences` writes"
    )
    with pytest.raises(UserError, match=message):
        encode_pairs(path, tokenizer, "alpaca", CONTEXT)
    path.write_text(
        json.dumps({"instruction": "Say it.", "input": "", "chosen": "It.", "rejected": "No."})
    )
    message = (
        r"holds no instructions with a response; "
        r"give the manifest\.json that `nanoeuler instructions` writes"
    )
    with pytest.raises(UserError, match=message):
        encode_records(path, tokenizer, "alpaca", CONTEXT)


def test_no_parent_is_one_sentence(trainer):
    said = trainer.run("dpo", status=1)
    assert (
        "dpo starts from a tuned model; give its folder with --parent, or set dpo.init_from" in said
    )
    assert "Traceback" not in said
