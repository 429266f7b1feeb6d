"""A run that is stopped at any moment ends with bit-identical weights: processes are killed."""

import json
import resource
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.files import sha256_file
from nanoeuler.integrity import seal
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.fingerprint import earlier_fingerprint
from tests.waiting import CEILING

FREQUENT = 0.001  # minutes between checkpoints


def stop_at(trainer, step, number, stage="pretrain"):
    """Start training and send the signal at `step`; returns exit status and standard error."""
    process = trainer.start_until(step, stage)
    process.send_signal(number)
    _, said = process.communicate(timeout=CEILING)
    return process.returncode, said


@pytest.mark.parametrize("steps", [(1,), (7, 23, 41)])
def test_kill_9_at_any_moment_changes_nothing(trainer, uninterrupted, steps):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    for step in steps:
        status, _ = stop_at(trainer, step, signal.SIGKILL)
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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_polite_stop_saves_and_goes_on(trainer, uninterrupted, number, status):
    stopped, said = stop_at(trainer, 13, number)
    assert stopped == status
    assert "saving after this step" in said
    (checkpoint,) = trainer.checkpoints()
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    assert f"going on from step {step} of 60" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


def test_resuming_with_other_code_is_said_and_with_the_same_is_not(
    trainer, uninterrupted, tmp_path
):
    stop_at(trainer, 13, signal.SIGTERM)
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
    trainer.run("sft", *parent)
    weights = trainer.weights("sft")
    *_, before, last = (path / "state.json" for path in trainer.checkpoints("sft"))
    state, earlier = (json.loads(path.read_text()) for path in (last, before))
    assert state["best"]["step"] == state["step"] == 60
    known = {key: earlier[key] for key in ("best", "validated", "worse")}
    last.write_text(json.dumps(seal(state | known | {"finished": False})))
    assert "validation step=60" in trainer.run("sft", *parent)
    assert trainer.weights("sft") == weights


def test_a_finished_run_is_only_exported_again(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    shutil.rmtree(trainer.output / "pretrain" / "model")
    assert "exporting its model again" in trainer.run()
    assert trainer.weights() == uninterrupted.weights()


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


def test_a_resumed_run_computes_as_many_rows_at_once_as_it_is_told(trainer, uninterrupted):
    trainer.config["pretrain"]["checkpoint_minutes"] = FREQUENT
    stop_at(trainer, 13, signal.SIGINT)
    before = trainer.metrics()[0]["micro_batch_rows"]
    trainer.config["pretrain"]["micro_batch_rows"] = 1
    said = trainer.run()
    assert before > 1
    assert (
        f"resuming with another micro_batch_rows {before} → 1: "
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
    stop_at(trainer, 30, signal.SIGKILL)
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


def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing_half_written(trainer):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    said = trainer.run(status=1, preexec_fn=limit)
    assert "the disk is full" in said
    assert "Traceback" not in said
    assert not (trainer.output / "pretrain" / "model").exists()
    assert trainer.checkpoints() == []
    assert [path.name for path in (trainer.output / "pretrain" / "checkpoints").iterdir()] == []


def test_a_wsd_run_can_be_made_longer(trainer):
    trainer.config["pretrain"]["schedule"] = "wsd"
    trainer.run()
    trainer.config["pretrain"]["tokens"] = 100 * 128
    assert "now 100 steps: going on from step 48" in trainer.run()
    longer = trainer.weights()
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run()
    assert trainer.weights() == longer


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
    longer = trainer.weights(), load_model(trainer.output / "pretrain" / "model").info["step"]
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run()
    assert longer == (
        trainer.weights(),
        load_model(trainer.output / "pretrain" / "model").info["step"],
    )


def test_a_wsd_run_whose_warm_up_was_cut_starts_again_when_made_longer(trainer):
    trainer.config["pretrain"] |= {"schedule": "wsd", "warmup_steps": 40, "tokens": 30 * 128}
    trainer.run()
    trainer.config["pretrain"]["tokens"] = 60 * 128
    assert "the warm-up takes half of a run of 30 steps" in trainer.run()
    longer = trainer.weights()
    shutil.rmtree(trainer.output / "pretrain")
    trainer.run()
    assert trainer.weights() == longer


def test_a_run_of_earlier_code_stays_finished(trainer, uninterrupted):
    """That code hashed minimum_fit_share; here is a checkpoint as it wrote it."""
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    trainer.config["sft"] |= {"minimum_fit_share": 0.25, "patience": 50, "keep": "final"}
    trainer.run("sft", *parent)
    weights = trainer.weights("sft")
    path = trainer.checkpoints("sft")[-1] / "state.json"
    state = json.loads(path.read_text())
    info = load_model(trainer.output / "sft" / "model").info
    config = ModelConfig.from_dict(trainer.config["model"])
    files = [trainer.data / "instructions" / f"{split}.jsonl" for split in ("train", "validation")]
    state["fingerprint"] = earlier_fingerprint(
        "sft",
        state["section"],
        model=replace(config, context=256).to_dict(),
        seed=1,
        instructions=[sha256_file(path) for path in files],
        tokenizer=Tokenizer.load(trainer.data / "tokenizer.json").fingerprint,
        parent=info["parent"],
    )
    path.write_text(json.dumps(seal(state)))
    assert "exporting its model again" in trainer.run("sft", *parent)
    assert trainer.weights("sft") == weights
    state["section"]["validate_every"] = 5  # which that code did not hash
    path.write_text(json.dumps(seal(state)))
    assert "changed since the last run: validate_every 5 → 4" in trainer.run("sft", *parent)


def test_settings_that_are_changed_back_find_their_checkpoints_again(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    (trainer.output / "pretrain" / "metrics.jsonl").unlink()  # `stop_at` waits for new steps
    trainer.config["pretrain"]["tokens"] = 70 * 128
    stop_at(trainer, 5, signal.SIGINT)
    assert trainer.weights() == uninterrupted.weights(), "the finished model stays until the end"
    trainer.config["pretrain"]["tokens"] = 60 * 128
    said = trainer.run()
    assert "these settings were trained before" in said
    assert "exporting its model again" in said
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


def test_text_shorter_than_a_row_is_said_before_training(trainer):
    trainer.config["model"]["context"] = 100_000
    assert (
        "fewer than one row of model.context = 100000; add text or lower model.context"
        in trainer.run(status=1)
    )


def test_little_text_for_the_model_is_said_before_training(trainer):
    trainer.config["pretrain"]["tokens"] = 1_000_000
    process = trainer.start_until(1)
    process.kill()
    _, said = process.communicate()
    assert "most of the text will be learned by heart" in said


def test_a_tokenizer_of_another_run_is_refused(trainer, smaller_tokenizer):
    said = trainer.run("pretrain", "--tokenizer", str(smaller_tokenizer), status=1)
    assert "made with another tokenizer" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_a_vocabulary_of_another_size_than_the_model_s_is_refused(
    trainer, tuned, smaller_tokenizer, stage
):
    arguments = ["--parent", str(tuned), "--tokenizer", str(smaller_tokenizer)]
    said = trainer.run(stage, *arguments, status=1)
    assert (
        f"model.vocab_size is 288 but {smaller_tokenizer} has 287 entries; "
        "use the tokenizer that the model was trained with" in said
    )
    assert "Traceback" not in said


def test_a_flipped_byte_in_a_model_is_noticed(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    weights = trainer.output / "pretrain" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="its bytes are not those that the stage pretrain wrote"):
        load_model(weights.parent)


@pytest.mark.parametrize("missing", [("pretrain",), ("pretrain", "learning_rate"), ("seed",)])
def test_an_inline_configuration_that_lacks_a_key_is_told_which(trainer, missing):
    section = trainer.config
    for key in missing[:-1]:
        section = section[key]
    del section[missing[-1]]
    said = trainer.run(status=1)
    assert f"inline JSON without the key '{missing[-1]}'" in said
    assert "Traceback" not in said


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux keeps to a limit on a process's memory"
)
def test_a_full_memory_is_told_with_what_would_help(trainer):
    def two_gigabytes():
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))

    model = dict(trainer.config["model"])
    trainer.config["model"] |= {"dim": 4096, "layers": 64}
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "GB whatever pretrain.micro_batch_rows and pretrain.recompute are: take a smaller model"
        in said
    )
    trainer.config["model"] = model
    trainer.config["pretrain"] |= {
        "tokens": 2**20,
        "batch_tokens": 2**20,
        "micro_batch_rows": 2**16,
    }
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "set pretrain.micro_batch_rows: 512 (the result stays the same within rounding) "
        "or take a smaller model" in said
    )
    trainer.config["pretrain"] |= {"batch_tokens": 2048, "micro_batch_rows": 1}
    trainer.config["model"] |= {"context": 2048, "ffn": 200_000}
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "a single row does not fit: set pretrain.recompute: true, "
        "or take a smaller model or a shorter context" in said
    )
