"""How long sft and dpo train where the configuration leaves it open."""

from pathlib import Path

import pytest

from nanoeuler.config.settings import Dpo, Sft
from nanoeuler.corpus.instructions import write_splits
from nanoeuler.storage.record_folder import read_json_lines
from nanoeuler.training.schedule import Amount


@pytest.mark.parametrize(
    ("stage", "tokens", "amount"),
    [
        # tens of thousands of records: as it always was
        (Sft, 6_000_000, Amount(16_384, 3, 100, 100)),
        (Dpo, 6_000_000, Amount(16_384, 1, 37, 37)),
        # a thousand: smaller batches
        (Sft, 150_000, Amount(2_048, 3, 22, 22)),
        # a hundred: smaller batches, more epochs
        (Sft, 19_000, Amount(2_048, 10, 10, 10)),
        (Dpo, 19_000, Amount(2_048, 3, 3, 3)),
        (Sft, 100, Amount(2_048, 10, 1, 1)),
    ],
)
def test_batch_epochs_warm_up_and_measurements_follow_from_the_records(stage, tokens, amount):
    assert Amount.of(stage(), tokens, row=512) == amount


def test_a_row_is_the_smallest_batch():
    assert Amount.of(Sft(), 19_000, row=4_096).batch_tokens == 4_096


def test_what_is_set_stays():
    given = {"batch_tokens": 8_192, "epochs": 2.5, "warmup_steps": 0, "validate_every": 7}
    assert Amount.of(Sft(**given), 19_000, row=512) == Amount(**given)
    assert Amount.of(Dpo(**given), 19_000, row=512) == Amount(**given)


OPEN = {"batch_tokens": None, "epochs": None, "warmup_steps": None, "validate_every": None}
EARLIER = {"batch_tokens": 16_384, "epochs": 3, "warmup_steps": 100, "validate_every": 100}
"""The defaults when they did not follow from the records."""


@pytest.fixture(scope="module")
def own(data, tmp_path_factory) -> Path:
    """127 records, as many as are left of 130."""
    records = {
        split: list(read_json_lines(data / "instructions" / f"{split}.jsonl"))
        for split in ("train", "validation")
    }
    every = [entry for split in records.values() for _, entry in split]
    folder = tmp_path_factory.mktemp("own")
    described = {"version": 1, "name": "own", "licence": "none"}
    write_splits(folder, {"train": (2 * every)[:127], "validation": every}, described, "records")
    return folder / "manifest.json"


def tune(trainer, own, uninterrupted, settings) -> tuple[int, list[float]]:
    """Steps, and the losses on held-out records."""
    trainer.config["sft"] |= {**settings, "learning_rate": Sft.learning_rate}
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    trainer.run("sft", *parent, "--instructions", str(own))
    header, *lines = trainer.metrics("sft")
    losses = [line["validation"]["loss"] for line in lines if "validation" in line]
    return header["total_steps"], losses


def test_with_the_defaults_127_records_are_learned(trainer, own, uninterrupted):
    """They gave six steps, inside of a warm-up."""
    steps, losses = tune(trainer, own, uninterrupted, OPEN)
    assert steps > 100
    assert len(losses) > 10, "the best of several models is kept"
    assert losses[-1] < 0.7 * losses[0]


def test_with_the_earlier_defaults_they_were_not(trainer, own, uninterrupted):
    steps, losses = tune(trainer, own, uninterrupted, EARLIER)
    assert steps < 10
    assert losses[-1] > 0.95 * losses[0]


def test_the_numbers_that_were_found_decide_the_fingerprint(trainer, own, uninterrupted):
    """A run that gives them by hand is the same run."""
    tune(trainer, own, uninterrupted, OPEN)
    section = trainer.metrics("sft")[0]["config"]["sft"]
    given = {key: section[key] for key in OPEN}
    assert None not in given.values()
    trainer.config["sft"] |= given
    parent = ["--parent", str(uninterrupted.output / "pretrain" / "model")]
    assert "exporting its model again" in trainer.run("sft", *parent, "--instructions", str(own))
