"""A run that is stopped at any moment ends with bit-identical weights: processes are killed."""

import json
import os
import pty
import shutil
import signal
import sys
from pathlib import Path

import pytest

from fuzz.material import environment
from nanoeuler.model.files import load_model
from nanoeuler.storage.integrity import seal
from nanoeuler.system.processes import LEFT_ALONE
from tests.waiting import CEILING, wait_until

FREQUENT = 0.001  # minutes between checkpoints


@pytest.mark.parametrize("steps", [(1,), (7, 23, 41)])
def test_kill_9_at_any_moment_changes_nothing(trainer, uninterrupted, steps):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    for step in steps:
        status, _ = trainer.stop_at(step, signal.SIGKILL, saved=step > 20)
        assert status == -signal.SIGKILL
    said = trainer.run()
    assert trainer.weights() == uninterrupted.weights()
    if max(steps) > 20:
        assert "resume  going on from step" in said
    expected = [
        (entry["step"], entry.get("loss"), entry.get("validation"))
        for entry in uninterrupted.metrics()
        if "step" in entry
    ]
    assert [
        (entry["step"], entry.get("loss"), entry.get("validation"))
        for entry in trainer.metrics()
        if "step" in entry
    ] == expected


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (LEFT_ALONE, 138)],
)
def test_a_polite_stop_saves_and_goes_on(trainer, uninterrupted, number, status):
    stopped, said = trainer.stop_at(13, number)
    assert stopped == status
    assert "saving after this step" in said
    (checkpoint,) = trainer.checkpoints()
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert f"going on from step {step} of 60" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


def test_a_terminal_that_is_closed_stops_training_when_it_has_saved(trainer, uninterrupted):
    """Of a real session: the shell's and the terminal's SIGHUP come both, and nothing is read."""
    pid, ours = pty.fork()
    if not pid:
        os.execvpe(sys.executable, trainer.command("pretrain"), environment())
    wait_until(lambda: trainer.last_step() >= 13)
    os.kill(pid, signal.SIGHUP)
    os.close(ours)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    (checkpoint,) = trainer.checkpoints()
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert f"going on from step {step} of 60" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


def test_a_stage_that_is_exported_again_stays_finished(trainer):
    trainer.run()
    finished = trainer.metrics()[-1]
    assert finished["finished"] is True
    shutil.rmtree(trainer.output / "pretrain/model")
    assert "was finished with these settings; exporting its model again" in trainer.run()
    again = trainer.metrics()[-1]
    assert again["finished"] is True
    assert again["step"] == finished["step"] == 60
    # the time of training, without that of saving the last checkpoint, or of exporting again
    assert finished["seconds"] - 5 < again["seconds"] <= finished["seconds"]
    assert [entry for entry in trainer.metrics() if "finished" in entry] == [again]


def test_under_nohup_a_closed_terminal_changes_nothing(trainer, uninterrupted):
    """Also where its progress line still goes to that terminal."""
    pid, ours = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execvpe(sys.executable, trainer.command("pretrain"), environment())
    wait_until(lambda: trainer.last_step() >= 5)
    os.close(ours)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert trainer.weights() == uninterrupted.weights()


def test_resuming_with_other_code_is_said_and_with_the_same_is_not(
    trainer, uninterrupted, tmp_path
):
    trainer.stop_at(13, signal.SIGTERM)
    package = Path(__file__).parents[2] / "nanoeuler"
    others = shutil.ignore_patterns("__pycache__", "cuda")
    shutil.copytree(package, tmp_path / "upgraded/nanoeuler", ignore=others)
    with (tmp_path / "upgraded/nanoeuler/training/loop.py").open("a") as file:
        file.write("# changed\n")
    shutil.copytree(trainer.output, tmp_path / "same")
    said = trainer.run(cwd=tmp_path / "upgraded")  # the working folder comes first
    assert said.count("notice") == 1
    assert "resuming with another code " in said
    assert trainer.weights() == uninterrupted.weights()
    trainer.output = tmp_path / "same"
    said = trainer.run()
    assert "going on from step" in said
    assert "notice" not in said


def test_sft_resumes_to_the_bit(trainer, uninterrupted):
    parent = str(uninterrupted.output / "pretrain" / "model")
    trainer.run("sft", "--parent", parent)
    whole, measured = trainer.weights("sft"), validations(trainer)
    assert next(iter(measured)) == 0, "the parent is measured before the first step"
    shutil.rmtree(trainer.output / "sft")
    process = trainer.start_until(5, "sft", "--parent", parent)
    process.kill()
    process.communicate()
    trainer.run("sft", "--parent", parent)
    assert trainer.weights("sft") == whole
    assert validations(trainer) == measured


def validations(trainer):
    """The validation loss of fine-tuning by step; each step is measured once."""
    found = [
        (entry["step"], entry["validation"]["loss"])
        for entry in trainer.metrics("sft")
        if "validation" in entry
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_of_a_final_model_it_is_told_that_an_earlier_one_was_better(trainer, uninterrupted):
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    trainer.config["sft"] |= {"learning_rate": 0.5, "validate_every": 1, "keep": "final"}
    said = trainer.run("sft", *parent)
    scores = {step: score for step, score in validations(trainer).items() if step}
    best = min(scores, key=scores.__getitem__)
    assert f"overfit  step {best} was better on held-out data, {scores[best]:.4g} beside" in said


def test_early_stop_ends_a_stage_that_gets_no_better_and_hands_on_its_best(trainer, uninterrupted):
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    trainer.config["sft"] |= {
        "learning_rate": 0.5,  # so high that the model soon gets worse
        "warmup_steps": 0,
        "patience": 2,
        "validate_every": 1,
    }
    said = trainer.run("sft", *parent)
    assert "no better held-out measurement in 2" in said
    assert "overfit" not in said
    before, *scores = [
        entry["validation"]["loss"] for entry in trainer.metrics("sft") if "validation" in entry
    ]
    assert before > 0, "what the stage starts from is measured, too, and cannot be the best"
    best = min(range(len(scores)), key=scores.__getitem__)
    assert len(scores) == best + 3
    assert trainer.last_step("sft") == len(scores) < trainer.metrics("sft")[0]["total_steps"]
    assert load_model(trainer.output / "sft" / "model").info["step"] == best + 1
    weights = trainer.weights("sft")
    assert "exporting its model again" in trainer.run("sft", *parent)
    assert trainer.weights("sft") == weights


def test_a_run_killed_before_its_last_measurement_makes_it_when_it_resumes(trainer, uninterrupted):
    """The last checkpoint is written before the measurement that makes it the best."""
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    trainer.config["sft"] |= {"validate_every": 7}
    stopped = trainer.start_until(16, "sft", *parent)
    stopped.send_signal(signal.SIGINT)
    stopped.communicate()
    *_, before = trainer.checkpoints("sft")
    earlier = json.loads((before / "state.json").read_text())
    assert earlier["step"] < 60
    aside = shutil.copytree(before.parent, trainer.output / "aside")
    trainer.run("sft", *parent)
    weights = trainer.weights("sft")
    (checkpoint,) = trainer.checkpoints("sft")
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["best"]["step"] == state["step"] == 60
    shutil.copytree(aside, checkpoint.parent, dirs_exist_ok=True)
    known = {key: earlier[key] for key in ("best", "validated", "worse")}
    unmeasured = seal(state | known | {"finished": False})
    (checkpoint / "state.json").write_text(json.dumps(unmeasured))
    assert "validation step=60" in trainer.run("sft", *parent)
    assert trainer.weights("sft") == weights


def test_a_finished_run_is_only_exported_again(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    shutil.rmtree(trainer.output / "pretrain" / "model")
    assert "exporting its model again" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


def test_a_resumed_run_computes_as_many_rows_at_once_as_it_is_told(trainer, uninterrupted):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    trainer.stop_at(13, signal.SIGINT)
    before = trainer.metrics()[0]["micro_batch_rows"]
    trainer.config["pretrain"] |= {"micro_batch_rows": 1, "recompute": True}
    said = trainer.run()
    assert before > 1
    assert (
        f"resuming with another micro_batch_rows {before} → 1, recompute False → True: "
        "results agree within rounding, not to the bit" in said
    )
    losses, whole = (
        [entry["loss"] for entry in run.metrics() if "loss" in entry]
        for run in (trainer, uninterrupted)
    )
    assert losses == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("damage", ["flip a byte", "cut off", "lose the state"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(trainer, uninterrupted, damage):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    trainer.stop_at(30, signal.SIGKILL, saved=True)
    newest = trainer.checkpoints()[-1]
    weights = newest / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "flip a byte":
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
    elif damage == "cut off":
        weights.write_bytes(content[:-100])
    else:
        (newest / "state.json").write_text("{")
    said = trainer.run()
    assert f"{newest}: " in said
    assert "is damaged; falling back to the checkpoint before it" in said
    assert trainer.weights() == uninterrupted.weights()


def test_a_second_trainer_is_refused(trainer):
    trainer.config["pretrain"]["tokens"] *= 1000
    first = trainer.start_until(1)
    try:
        assert "another trainer is at work there since" in trainer.run(status=1)
    finally:
        first.kill()
        first.communicate()


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(trainer):
    trainer.config["pretrain"] |= {
        "checkpoint_minutes": FREQUENT,
        "learning_rate": 1e12,
        "warmup_steps": 30,
        "clip_norm": 1e30,
        "weight_decay": 0.0,
    }
    said = trainer.run(status=1)
    assert "the loss is not a number at step" in said
    assert "lower pretrain.learning_rate" in said
    assert said.count("Traceback") == 0
    assert not (trainer.output / "pretrain" / "model").exists()


def test_a_folder_that_is_moved_meanwhile_ends_the_stage_in_a_sentence(trainer, uninterrupted):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    process = trainer.start_until(23, "pretrain", saved=True)
    moved = trainer.output.with_name("moved")
    trainer.output.rename(moved)
    _, said = process.communicate(timeout=CEILING)
    assert process.returncode == 1
    assert "was moved or deleted while the stage ran; put it back" in said
    assert "Traceback" not in said
    assert not trainer.output.exists()
    moved.rename(trainer.output)
    assert "going on from step" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


def test_measurements_that_are_a_link_replace_no_other_file(trainer, tmp_path):
    (tmp_path / "thesis").write_text("hi")
    metrics = trainer.output / "pretrain" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.symlink_to(tmp_path / "thesis")
    said = trainer.run(status=1)
    assert "metrics.jsonl: a link to " in said
    assert (tmp_path / "thesis").read_text() == "hi"
