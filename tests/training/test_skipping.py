"""Rows whose loss is not a number are left out, and a killed run leaves out the same.

A letter that two training documents have gets infinite embeddings, so that their rows overflow.
"""

import json
import signal

import numpy as np
import pytest

from nanoeuler.model.files import load_model, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.resuming import REWIND_STEPS, SOON, Skipped
from tests.waiting import wait_until


def test_a_step_that_fails_alone_loses_its_rows_alone():
    skipped = Skipped()
    assert skipped.leave_out(20) == 20
    assert [skipped.rows_of(step) for step in (19, 20, 21)] == [19, 21, 22]
    assert skipped.leave_out(20 + SOON + 1) == 20 + SOON + 1
    assert skipped.ranges == [[20, 20], [20 + SOON + 2, 20 + SOON + 2]]
    assert (skipped.rewinds, skipped.steps) == (2, 2)


def test_steps_that_fail_soon_after_each_other_go_back():
    skipped = Skipped()
    skipped.leave_out(REWIND_STEPS + 50)
    assert skipped.leave_out(REWIND_STEPS + 51) == 51
    assert skipped.ranges == [[51, REWIND_STEPS + 52]]
    assert [skipped.rows_of(step) for step in (50, 51)] == [50, REWIND_STEPS + 53]
    assert skipped.leave_out(52) == 0, "at most to the beginning"
    assert skipped.ranges == [[0, REWIND_STEPS + 54]]


@pytest.fixture
def poisoned(trainer, data, uninterrupted):
    """A trainer that starts from weights with which a few rows overflow."""
    model = load_model(uninterrupted.output / "pretrain" / "model")
    (token,) = Tokenizer.load(data / "tokenizer.json").encode("~")
    FlatBuffer(model.config, model.parameters)["model.embed_tokens.weight"][token] = np.inf
    save_model(trainer.output / "poisoned", model)
    trainer.config["pretrain"] |= {
        "init_from": str(trainer.output / "poisoned"),
        "tokens": 170 * 128,
        "checkpoint_minutes": 0.001,
        "rewinds": 30,
    }
    return trainer


def stop_at(trainer, step):
    """Start a trainer and kill it at `step`."""
    process = trainer.start()
    wait_until(lambda: trainer.last_step() >= step or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_rows_that_overflow_are_left_out_and_kills_change_nothing(poisoned):
    said = poisoned.run()
    whole, header = poisoned.weights(), poisoned.metrics()[0]
    assert header["skipped"]
    assert "the loss is not a number at step" in said
    assert "of 30 rewinds)" in said
    assert poisoned.last_step() == 170
    model = load_model(poisoned.output / "pretrain" / "model")
    assert model.info["skipped"] == header["skipped"]
    config, poisoned.output = poisoned.config, poisoned.output / "killed"
    for step in (25, 60, 120, 160):
        stop_at(poisoned, step)
    poisoned.run()
    assert poisoned.config is config
    assert poisoned.weights() == whole
    assert poisoned.metrics()[0]["skipped"] == header["skipped"]


def test_too_many_losses_that_are_no_number_end_a_run_with_advice_that_works(poisoned):
    poisoned.config["pretrain"]["rewinds"] = 1
    said = poisoned.run(status=1)
    assert "after 1 rewind; lower pretrain.learning_rate" in said
    folder = said.partition("set pretrain.init_from: ")[2].split(" to go on")[0]
    poisoned.config["pretrain"] |= {"init_from": folder, "learning_rate": 1e-3, "rewinds": 30}
    poisoned.run()
    assert poisoned.last_step() == 170
    state = poisoned.checkpoints()[-1] / "state.json"
    assert json.loads(state.read_text())["finished"]
    assert "exporting its model again" in poisoned.run(), "what init_from names has stayed there"
