"""`nanoeuler dpo`: kills, changed losses, the kept reference, and refusals."""

import json
import re
import resource
import shutil

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.files import load_model
from nanoeuler.training.pairs import encode_pairs
from nanoeuler.training.records import encode_records
from nanoeuler.training.stages.dpo import computed_by, read_reference


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


def test_a_disk_that_is_full_when_the_reference_is_kept_is_said_in_one_sentence(trainer, tuned):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    said = trainer.run("dpo", "--parent", str(tuned), status=1, preexec_fn=limit)
    assert re.search("dpo/reference/[0-9a-f]{16}: the disk is full", said)
    assert "Traceback" not in said
    assert list((trainer.output / "dpo/reference").iterdir()) == []


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
    engines = [ReferenceBackend(kind) for kind in (np.float32, np.float64)]
    single, double = (computed_by(engine, None) for engine in engines)
    assert set(single) == {"engine", "device", "precision", "residual", "revision"}
    assert single != double
    modes = [computed_by(engines[0], mode)["reproducible"] for mode in ("ranks", "chip")]
    assert modes == ["ranks", "chip"]


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
        encode_pairs(path, tokenizer, "alpaca", 300)
    path.write_text(
        json.dumps({"instruction": "Say it.", "input": "", "chosen": "It.", "rejected": "No."})
    )
    message = (
        r"holds no instructions with a response; "
        r"give the manifest\.json that `nanoeuler instructions` writes"
    )
    with pytest.raises(UserError, match=message):
        encode_records(path, tokenizer, "alpaca", 300)


def test_no_parent_is_one_sentence(trainer):
    said = trainer.run("dpo", status=1)
    assert (
        "dpo starts from a tuned model; give its folder with --parent, or set dpo.init_from" in said
    )
    assert "Traceback" not in said
