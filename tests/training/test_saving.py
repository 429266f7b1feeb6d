"""A thread writes checkpoints while training goes on."""

import json
import threading

import numpy as np
import pytest

from nanoeuler.config.settings import Pretrain
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.training.checkpoint import Checkpoints, Saver
from nanoeuler.training.lock import LOCK
from nanoeuler.training.schedule import Schedule

MODEL = ModelConfig(vocab_size=16, dim=8, layers=1, heads=1, kv_heads=1, ffn=8, context=8)


class Slow(Checkpoints):
    """Writes when it may."""

    def __init__(self, folder):
        super().__init__(folder)
        self.may_write = threading.Event()

    def save(self, *given):
        self.may_write.wait()
        super().save(*given)


def begin(folder) -> tuple[Saver, Slow, dict]:
    settings = Pretrain(tokens=1000, batch_tokens=100, learning_rate=1e-3)
    (folder / LOCK).touch()  # the trainer's
    slow = Slow(folder)
    saver = Saver(slow, settings, Schedule.of(settings, 10))
    tensors = {
        name: np.ones(FlatBuffer.elements(MODEL), np.float32) for name in ("parameters", "m")
    }
    info = {"finished": False, "algorithms": {"one": "1"}}
    saver.begin([(5, tensors)], MODEL, info)
    return saver, slow, info


def test_a_checkpoint_has_what_was_known_when_it_was_begun(tmp_path):
    saver, slow, info = begin(tmp_path)
    info["algorithms"]["two"] = "2"  # as the next step may find one
    assert slow.steps() == []
    slow.may_write.set()
    saver.finish()
    state = json.loads((slow.path(5) / "state.json").read_text())
    assert state["algorithms"] == {"one": "1"}
    assert slow.newest()["step"] == saver.step == 5


def test_training_hears_of_a_checkpoint_that_could_not_be_written(tmp_path):
    (tmp_path / "step-00000005").mkdir()
    (tmp_path / "step-00000005" / "notes.txt").touch()
    saver, slow, _ = begin(tmp_path)
    saver.notice()  # not yet known
    slow.may_write.set()
    assert saver.writing.exception()
    with pytest.raises(UserError, match="step-00000005"):
        saver.notice()
