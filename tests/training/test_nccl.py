"""Ranks with a GPU each: a run is that of one GPU within rounding, and repeats to the bit."""

import signal

import numpy as np
import pytest

from nanoeuler.backend import gpu_count
from tests.training.test_ranks import assert_alike, parameters, ranks_of, wait_for_end

pytestmark = pytest.mark.gpu
ONE, TWO = ("--device", "cuda"), ("--device", "cuda", "--gpus", "2")


@pytest.fixture
def two_gpus(trainer):
    """A trainer where there are two GPUs."""
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    trainer.config["model"] |= {"dim": 64, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 84}
    trainer.config["pretrain"] |= {"checkpoint_minutes": 0.001, "micro_batch_rows": 4}
    return trainer


def make_large_enough_for_fp8(trainer):
    trainer.config["model"] |= {"dim": 128, "ffn": 256, "context": 64}
    trainer.config["pretrain"] |= {
        "precision": "fp8",
        "tokens": 40 * 16384,
        "batch_tokens": 16384,
        "micro_batch_rows": 64,
        "learning_rate": 1e-3,  # at ten times that, rounding alone moves a tensor by a tenth
    }


def run_in(trainer, folder, *extra, stage="pretrain"):
    trainer.output = trainer.output / folder
    trainer.run(stage, *extra)
    return parameters(trainer, stage)


def difference(found, expected):
    """The largest of the tensors' relative errors."""
    return max(
        np.linalg.norm(found[name] - values) / np.linalg.norm(values)
        for name, values in expected.items()
    )


def assert_two_train_as_one(trainer, *extra, stage="pretrain"):
    """Two GPUs differ from one as a run of one does that computes other rows at a time.

    Training amplifies rounding by an amount that depends on the precision and the stage. Both runs
    start it by adding the same rows in another order, so their differences are of a size.
    """
    one = run_in(trainer, "one", *ONE, *extra, stage=stage)
    two = run_in(trainer, "two", *TWO, *extra, stage=stage)
    assert trainer.metrics(stage)[0]["ranks"] == 2
    trainer.config[stage]["micro_batch_rows"] *= 2
    other = run_in(trainer, "other", *ONE, *extra, stage=stage)
    rounding = difference(other, one)
    trainer.config[stage]["micro_batch_rows"] //= 2
    assert rounding < 0.3
    assert difference(two, one) < max(4 * rounding, 1e-3)
    return one


@pytest.mark.parametrize(
    ("precision", "optimizer"), [("fp32", "adamw"), ("bf16", "adamw"), ("bf16", "muon")]
)
def test_two_gpus_train_as_one_does_and_repeat_to_the_bit(two_gpus, precision, optimizer):
    two_gpus.config["pretrain"] |= {"precision": precision, "optimizer": optimizer}
    assert_two_train_as_one(two_gpus)
    run_in(two_gpus, "again", *TWO)
    first = two_gpus.weights()
    run_in(two_gpus, "once_more", *TWO)
    assert two_gpus.weights() == first


@pytest.mark.parametrize(("who", "fp8"), [("rank 0", False), ("rank 1", True)])
def test_a_killed_rank_ends_all_and_the_rerun_goes_on_to_the_same_bits(two_gpus, who, fp8):
    if fp8:
        make_large_enough_for_fp8(two_gpus)
    run_in(two_gpus, "whole", *TWO)
    whole = two_gpus.weights()
    two_gpus.output = two_gpus.output / "killed"
    process = two_gpus.start_until(23, "pretrain", *TWO)
    others = ranks_of(process)
    (process if who == "rank 0" else others[0]).send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    wait_for_end(others)
    if who == "rank 1":
        assert said.count("rank 1 of 2 was killed by SIGKILL; the other ranks are stopped") == 1
        assert "Traceback" not in said
    assert "going on from step" in two_gpus.run("pretrain", *TWO)
    assert two_gpus.weights() == whole


def test_two_gpus_scale_fp8_as_one_does(two_gpus):
    make_large_enough_for_fp8(two_gpus)
    assert_two_train_as_one(two_gpus)


def test_a_run_of_one_gpu_goes_on_with_two_within_rounding(two_gpus):
    two_gpus.config["pretrain"]["precision"] = "fp32"
    expected = run_in(two_gpus, "whole", *ONE)
    two_gpus.output = two_gpus.output / "stopped"
    process = two_gpus.start_until(23, "pretrain", *ONE)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert "ranks 1 → 2" in two_gpus.run("pretrain", *TWO)
    assert_alike(parameters(two_gpus), expected)


def test_tuning_stages_share_steps_too(two_gpus):
    for stage in ("sft", "dpo"):
        two_gpus.config[stage] |= {
            "precision": "fp32",
            "keep": "final",
            "micro_batch_rows": 2,
            "learning_rate": 1e-3,
        }
    start = two_gpus.output
    assert_two_train_as_one(two_gpus, stage="sft")
    parent = str(start / "one" / "sft" / "model")
    assert_two_train_as_one(two_gpus, "--parent", parent, stage="dpo")
