"""The disk that a plan gives the checkpoints is what training leaves there."""

import shutil
import signal

import pytest

from nanoeuler.config.settings import Dpo, Pretrain, Sft
from nanoeuler.planning.data import Kept, checkpoints_kept


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": "best", "validate_every": 15, "checkpoint_minutes": 1e-6},
        {"keep": "final", "schedule": "wsd", "checkpoint_minutes": 1e-6},
    ],
)
def test_a_run_leaves_as_many_checkpoints_as_were_planned(trainer, settings):
    steps = 160
    section = trainer.config["pretrain"] | {"tokens": steps * 128, **settings}
    trainer.config["pretrain"] = section
    planned = checkpoints_kept(Pretrain.read(section), steps, seconds=1.0)
    trainer.stop_at(105, signal.SIGINT)
    assert planned.last <= len(trainer.checkpoints()) <= planned.most + planned.best
    trainer.run()
    assert len(trainer.checkpoints()) == planned.last


def test_a_finished_stage_keeps_what_a_longer_run_or_its_model_needs(trainer):
    """So that its disk does not depend on the clock, either."""
    frequent = {"checkpoint_minutes": 1e-6, "schedule": "wsd", "decay_share": 0.5}
    trainer.config["pretrain"] |= frequent
    trainer.run()
    assert [path.name for path in trainer.checkpoints()] == ["step-00000030", "step-00000060"]


def test_of_a_best_model_that_is_not_the_last_a_finished_stage_keeps_the_weights(trainer, tuned):
    trainer.config["dpo"] |= {"keep": "best", "learning_rate": 1.0}
    trainer.run("dpo", "--parent", str(tuned))
    best, last = trainer.checkpoints("dpo")
    assert {path.name for path in best.iterdir()} == {"model.safetensors", "state.json"}
    assert (last / "optimizer.safetensors").exists()
    weights = trainer.weights("dpo")
    shutil.rmtree(trainer.output / "dpo" / "model")
    assert "exporting its model again" in trainer.run("dpo", "--parent", str(tuned))
    assert trainer.weights("dpo") == weights
    shutil.rmtree(last)
    said = trainer.run("dpo", "--parent", str(tuned))
    assert "resume" not in said  # from a checkpoint without its optimizer
    assert "damaged" not in said
    assert trainer.weights("dpo") == weights


def test_the_best_model_is_written_with_the_next_checkpoint(trainer):
    """Else a large model would be written at each measurement, for longer than it trains."""
    trainer.config["pretrain"] |= {"keep": "best", "validate_every": 10}
    trainer.stop_at(25, signal.SIGKILL)
    assert not trainer.checkpoints()
    shutil.rmtree(trainer.output / "pretrain")
    trainer.stop_at(25, signal.SIGTERM)
    best, _last = trainer.checkpoints()
    assert best.name == "step-00000020"
    assert {path.name for path in best.iterdir()} == {"model.safetensors", "state.json"}
    assert "resume" in trainer.run()


def test_hours_of_the_shipped_stages_leave_what_runs_of_them_left():
    sft = Sft(batch_tokens=2048, learning_rate=6e-4, epochs=4, validate_every=40)
    assert checkpoints_kept(sft, 217, seconds=17.0) == Kept(1, 1, 0)
    dpo = Dpo(batch_tokens=4096, learning_rate=4e-5, validate_every=6)
    assert checkpoints_kept(dpo, 23, seconds=10.0) == Kept(1, 1, 0)
    pretrain = Pretrain(tokens=2_200_000, batch_tokens=2048, learning_rate=8e-3)
    assert checkpoints_kept(pretrain, 1075, seconds=3600.0) == Kept(1, 3, 0)
    assert checkpoints_kept(pretrain, 1075, seconds=5.0) == Kept(1, 1, 0)


def test_the_longest_run_is_planned_at_once():
    settings = Pretrain(tokens=10**15, batch_tokens=4096, learning_rate=1e-3)
    assert checkpoints_kept(settings, 10**12, 1e11) == checkpoints_kept(settings, 10**9, 1e8)
    decaying = Pretrain(
        tokens=10**9, batch_tokens=4096, learning_rate=1e-3, schedule="wsd", validate_every=20
    )
    assert checkpoints_kept(decaying, 190_000, 1.9e5) == checkpoints_kept(decaying, 250_000, 2.5e5)
    assert checkpoints_kept(decaying, 250_000, 2.5e5) == Kept(2, 4, 0)
