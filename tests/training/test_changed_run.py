"""Changed settings: a stage trains afresh, goes on, or says how to go on."""

import shutil
import signal

import pytest

from nanoeuler.model.files import load_model


def test_another_learning_rate_trains_afresh_and_keeps_the_old_checkpoints(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    trainer.config["pretrain"]["learning_rate"] = 5e-3
    assert "its checkpoints are kept in" in trainer.run()
    assert trainer.weights() != uninterrupted.weights()
    (stale,) = (trainer.output / "pretrain").glob("checkpoints.stale-*")
    assert [path.name for path in stale.iterdir()] == ["step-00000060"]


@pytest.mark.parametrize(
    "key", ["log_every", "checkpoint_minutes", "validate_every", "micro_batch_rows"]
)
def test_what_cannot_change_the_weights_does_not_retrain(trainer, uninterrupted, key):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    trainer.config["pretrain"][key] = 3
    assert "exporting its model again" in trainer.run()


def run_anew(trainer) -> str:
    """Pretrain from the beginning; returns the hash of the weights."""
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run()
    return trainer.weights()


def test_a_wsd_run_can_be_made_longer(trainer):
    trainer.config["pretrain"]["schedule"] = "wsd"
    trainer.run()
    trainer.config["pretrain"]["tokens"] = 100 * 128
    assert "now 100 steps: going on from step 48" in trainer.run()
    longer = trainer.weights()
    assert run_anew(trainer) == longer


def test_a_longer_wsd_run_hands_on_the_best_of_both_parts(trainer):
    """Every step of the fall is better than those before, every step behind it is worse."""
    trainer.config["pretrain"] |= {
        "schedule": "wsd",
        "keep": "best",
        "validate_every": 4,
        "decay_share": 0.5,
        "learning_rate": 0.05,
    }
    trainer.run()
    trainer.config["pretrain"]["tokens"] = 64 * 128
    assert "now 64 steps: going on from step 30" in trainer.run()
    model = trainer.output / "pretrain" / "model"
    longer = trainer.weights(), load_model(model).info["step"]
    assert (run_anew(trainer), load_model(model).info["step"]) == longer


def test_a_wsd_run_whose_warm_up_was_cut_starts_again_when_made_longer(trainer):
    trainer.config["pretrain"] |= {"schedule": "wsd", "warmup_steps": 40, "tokens": 30 * 128}
    trainer.run()
    trainer.config["pretrain"]["tokens"] = 60 * 128
    assert "the warm-up takes half of a run of 30 steps" in trainer.run()
    longer = trainer.weights()
    assert run_anew(trainer) == longer


def test_settings_that_are_changed_back_find_their_checkpoints_again(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    (trainer.output / "pretrain" / "metrics.jsonl").unlink()  # `stop_at` waits for new steps
    trainer.config["pretrain"]["tokens"] = 70 * 128
    trainer.stop_at(5, signal.SIGINT)
    assert trainer.weights() == uninterrupted.weights(), "the finished model stays until the end"
    trainer.config["pretrain"]["tokens"] = 60 * 128
    said = trainer.run()
    assert "these settings were trained before" in said
    assert "exporting its model again" in said
    assert trainer.weights() == uninterrupted.weights()


def test_what_others_put_beside_checkpoints_outlives_every_change(trainer, uninterrupted):
    """In a checkpoint and in the folder of those that were set aside, there and back twice."""
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    stage = trainer.output / "pretrain"
    (stage / "checkpoints" / "step-00000060" / "files").write_text("of step 60")
    for round, tokens in enumerate([10, 60, 10, 60]):
        trainer.config["pretrain"]["tokens"] = tokens * 128
        trainer.run()
        for stale in stage.glob("checkpoints.stale-*"):
            (stale / f"note-{round}").write_text(f"note {round}")
            (stale / "step-00000060").mkdir(exist_ok=True)
            (stale / "step-00000060" / f"in-{round}").write_text(f"in {round}")
    found = {path.read_text() for path in stage.rglob("*") if path.name[:4] in ("note", "file")}
    assert found == {"of step 60", *(f"note {round}" for round in range(4))}
    assert {path.name for path in stage.rglob("in-*")} == {f"in-{round}" for round in range(4)}
    assert trainer.weights() == uninterrupted.weights()


def test_init_from_starts_from_a_checkpoint_or_a_model(trainer, uninterrupted):
    stage = uninterrupted.output / "pretrain"
    weights = set()
    for folder in (stage / "checkpoints" / "step-00000060", stage / "model", stage):
        trainer.config["pretrain"]["init_from"] = str(folder)
        shutil.rmtree(trainer.output / "pretrain", ignore_errors=True)
        trainer.run()
        weights.add(trainer.weights())
    assert len(weights) == 1
    assert weights != {uninterrupted.weights()}


def test_init_from_a_model_of_another_size_is_refused(trainer, uninterrupted):
    trainer.config["model"]["ffn"] = 24
    trainer.config["pretrain"]["init_from"] = str(uninterrupted.output / "pretrain" / "model")
    assert "its model has other fields than this config's (ffn 20 there, 24 here)" in trainer.run(
        status=1
    )


def test_a_longer_cosine_run_says_how_to_go_on(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    trainer.config["pretrain"]["tokens"] = 70 * 128
    said = trainer.run()
    assert "changed since the last run: tokens 7680 → 8960; its checkpoints are kept in" in said
    assert "set pretrain.init_from: " in said
