"""Training goes on from a refined model as if nothing had happened, and resumes to the bit."""

import json
import re
import shutil
import signal

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.model.checks import model_gradients
from nanoeuler.model.checks.model_gradients import random_parameters
from nanoeuler.model.config import ModelConfig, refined
from nanoeuler.model.files import load_model, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.refining import LAYER, OUTPUTS, refine
from nanoeuler.model.spec import tensor_table
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from nanoeuler.training.worker import refined_tensors

ADAMW = AdamW(0.9, 0.95, 1e-12, 0.1, clip_norm=1e9)
TINY = model_gradients.TINY | {"vocab_size": 19, "ffn": 11}
"""Limits below are of this shape."""


def stream():
    tokens = np.random.default_rng(1).integers(1, TINY["vocab_size"], 3000).astype(np.int32)
    return TextStream(tokens, 8, 96, (1, 1, 1), 0, True, 1, "text")


def update(state, tensors=None):
    """The change that the fifth update makes, to the refined model if `tensors` are given."""
    if tensors is not None:
        parameters = tensors["parameters"].copy()
        state = TrainingState(
            refined(state.config), state.backend, parameters, state.optimizer_settings
        )
        state.load(tensors, 4)
    before = state.parameters.copy()
    state.train_step(stream().rows(4), 12, 1e-3)
    return state.parameters - before


def errors_of_updates(settings, depth):
    """How far the next update of a refined model is from that of the model, in relation to it:
    with the moments as they should be, and with those of the model unchanged."""
    config = ModelConfig.from_dict(TINY | {"step_size": 1 / 8})
    parameters = random_parameters(config, np.random.default_rng(1))
    for _ in range(depth):
        config, parameters = refined(config), refine(config, parameters)
    state = TrainingState(config, ReferenceBackend(np.float64), parameters, settings)
    for step in range(4):
        state.train_step(stream().rows(step), 12, 1e-3)
    right = refined_tensors(state)
    unchanged = {name: refine(config, array) for name, array in state.tensors().items()}
    found = update(state, right), update(state, unchanged)
    expected = refine(config, update(state))
    for tensor in tensor_table(refined(config)):
        if re.match(r"model\.layers\.[01]\.", tensor.name):  # the first layer is kept whole
            for each in (*found, expected):
                each[tensor.offset : tensor.stop] = 0
    return [np.linalg.norm(each - expected) / np.linalg.norm(expected) for each in found]


def test_adamw_moves_both_copies_of_a_tensor_like_the_tensor():
    (before, _), (error, unchanged) = (errors_of_updates(ADAMW, depth) for depth in (2, 3))
    assert before / error == pytest.approx(2, abs=0.4), "order one"
    assert error < 0.07
    assert unchanged > 0.15, "the moments of the model itself are those of another gradient"


def test_muon_moves_both_copies_of_a_tensor_like_the_tensor():
    """Muon enlarges what is small in a gradient, so that this begins at smaller steps."""
    (before, _), (error, unchanged) = (
        errors_of_updates(Muon(0.95, ADAMW), depth) for depth in (3, 4)
    )
    assert before / error > 1.3
    assert error < 0.1
    assert unchanged > 0.3


@pytest.mark.parametrize("settings", [ADAMW, Muon(0.95, ADAMW)], ids=["adamw", "muon"])
@pytest.mark.parametrize("fields", [{}, {"family": "gpt2", "kv_heads": 4}], ids=["llama", "gpt2"])
def test_weights_that_have_no_gradient_yet_begin_without_moments(settings, fields):
    """The inputs of the first layer's second copy, whose outputs are 0. All others have both."""
    config = ModelConfig.from_dict(TINY | fields)
    start = random_parameters(config, np.random.default_rng(1))
    state = TrainingState(config, ReferenceBackend(np.float64), start, settings)
    for step in range(2):
        state.train_step(stream().rows(step), 12, 1e-3)
    tensors, finer = refined_tensors(state), refined(config)
    grown = TrainingState(finer, state.backend, tensors["parameters"].copy(), settings)
    grown.load(tensors, 2)
    grown.train_step(stream().rows(2), 12, 1e-3)
    gradients = FlatBuffer(finer, grown.gradients)
    moments = FlatBuffer(finer, tensors["first_moment"])
    after, before = (FlatBuffer(finer, each) for each in (grown.parameters, tensors["parameters"]))
    silent = {tensor.name for tensor in tensor_table(finer) if not gradients[tensor.name].any()}
    second = {t.name for t in tensor_table(finer) if LAYER.match(t.name) and ".1." in t.name}
    assert silent == {name for name in second if not name.endswith(OUTPUTS)} != set()
    for tensor in tensor_table(finer):
        is_silent = tensor.name in silent
        assert moments[tensor.name].any() != is_silent, tensor.name
        if is_silent and not tensor.decay:
            np.testing.assert_array_equal(after[tensor.name], before[tensor.name])


# ---- whole runs


@pytest.fixture(scope="module")
def grown(data, uninterrupted, tmp_path_factory):
    """A run that grew from one layer to two to four, and kept a checkpoint of where it grew last.

    The rates of its schedule are those of any longer run until step 40.
    """
    trainer = type(uninterrupted)(data, tmp_path_factory.mktemp("grown"))
    trainer.config["model"] |= {"layers": 4, "step_size": 0.25}
    trainer.config["pretrain"] |= {
        "optimizer": "muon",
        "schedule": "wsd",
        "decay_share": 1 / 3,
        "grow_at": [20, 40],
    }
    trainer.said = trainer.run()
    return trainer


@pytest.fixture
def again(grown, tmp_path):
    """A trainer with the configuration of `grown` and a folder of its own."""
    trainer = type(grown)(grown.data, tmp_path)
    trainer.config = json.loads(json.dumps(grown.config))
    return trainer


def losses(trainer):
    return [entry["loss"] for entry in trainer.metrics() if "loss" in entry]


def test_a_run_ends_with_the_model_of_its_configuration(grown):
    model = load_model(grown.output / "pretrain" / "model")
    assert model.config == ModelConfig.from_dict(grown.config["model"])
    assert [line.split() for line in grown.said.splitlines() if "grow " in line] == [
        ["grow", "step=20", "layers=2", "step_size=0.5"],
        ["grow", "step=40", "layers=4", "step_size=0.25"],
    ]
    layers = [state_of(path)["model"]["layers"] for path in grown.checkpoints()]
    assert layers == [2, 4]


def state_of(checkpoint):
    return json.loads((checkpoint / "state.json").read_text())


def test_the_loss_goes_on_without_a_jump(grown, again):
    again.config["model"] |= {"layers": 2, "step_size": 0.5}
    again.config["pretrain"]["grow_at"] = [20]
    again.run()
    with_two, with_four = losses(again), losses(grown)
    assert with_two[:40] == with_four[:40]
    fall = with_two[0] - with_two[-1]
    assert with_two[40] != with_four[40]
    assert abs(with_two[40] - with_four[40]) < 0.03 * fall, "step 41: the same rows and weights"
    assert with_four[-1] < with_four[39]


def test_a_run_that_is_killed_before_and_behind_a_growth_ends_with_the_same_bits(grown, again):
    again.config["pretrain"]["checkpoint_minutes"] = 0.001
    for step in (12, 24, 44):
        assert again.stop_at(step, signal.SIGKILL)[0] == -signal.SIGKILL
    again.run()
    assert again.weights() == grown.weights()
    assert losses(again) == losses(grown)


def test_the_checkpoint_of_a_growth_is_of_the_model_before_it(grown, again):
    shutil.copytree(grown.output / "pretrain", again.output / "pretrain")
    shutil.rmtree(again.checkpoints()[-1])
    said = again.run()
    assert "going on from step 40 of 60" in said
    assert "layers=4" in said
    assert again.weights() == grown.weights()


def test_the_best_model_is_one_of_all_layers(again):
    again.config["pretrain"] |= {
        "keep": "best",
        "validate_every": 10,
        "grow_at": [20, 50],
        "learning_rate": 1.0,  # so high that the model gets worse: the best of all has two layers
        "decay_share": 0.01,
    }
    again.run()
    model = load_model(again.output / "pretrain" / "model")
    assert (model.info["step"], model.config.layers) == (60, 4)


def test_a_rewind_goes_back_to_the_model_before_a_growth(again, uninterrupted, data):
    """Rows with a letter whose embedding is infinite fail; see test_skipping.py."""
    model = load_model(uninterrupted.output / "pretrain" / "model")
    (token,) = Tokenizer.load(data / "tokenizer.json").encode("~")
    FlatBuffer(model.config, model.parameters)["model.embed_tokens.weight"][token] = np.inf
    save_model(again.output / "poisoned", model)
    again.config["seed"] = 2  # two steps fail soon after each other
    again.config["model"] |= {"layers": 2, "step_size": 0.5}
    again.config["pretrain"] |= {
        "init_from": str(again.output / "poisoned"),
        "tokens": 20 * 256,
        "batch_tokens": 256,
        "rewinds": 30,
        "grow_at": [5],
    }
    said = again.run()
    assert "going on from step 0 without the rows" in said
    assert said.count("\ngrow ") == 2
    assert load_model(again.output / "pretrain" / "model").config.layers == 2


def test_a_model_of_another_run_is_refined_and_trained_further(again, uninterrupted):
    before = uninterrupted.metrics()
    model, deeper = uninterrupted.output / "pretrain", str(again.output / "deeper")
    assert main(["refine", str(model), "--output", deeper]) == 0
    again.config["model"] |= {"layers": 2, "step_size": 0.5}
    again.config["pretrain"] |= {
        "init_from": deeper,
        "grow_at": [],
        "tokens": 10 * 128,
        "validate_every": 1,
        "learning_rate": 1e-5,
    }
    again.run()
    first = next(entry["validation"]["tales"] for entry in again.metrics() if "validation" in entry)
    last = next(e["validation"]["tales"] for e in reversed(before) if "validation" in e)
    assert abs(first - last) < 0.1 * last
