"""Ranks with a GPU each: a run is that of one GPU within rounding, and repeats to the bit."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from nanoeuler.backend import gpu_count
from tests.training.test_ranks import (
    assert_alike,
    assert_refused_alike_and_resumed,
    before_dpo,
    parameters,
    poison,
    ranks_of,
    wait_for_end,
)

pytestmark = pytest.mark.gpu


def on(gpus):
    return "--device", "cuda", "--gpus", str(gpus)


ONE, TWO = on(1), on(2)


def need(gpus):
    if gpu_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")


@pytest.fixture
def several_gpus(trainer):
    """A trainer where there are two GPUs or more."""
    need(2)
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


def assert_several_train_as_one(trainer, *extra, gpus=2, stage="pretrain", factor=4):
    """Several GPUs differ from one as a run of one does that computes other rows at a time.

    Training amplifies rounding by an amount that depends on the precision and the stage. Both runs
    start it by adding the same rows in another order, so their differences are of a size.
    """
    one = run_in(trainer, "one", *ONE, *extra, stage=stage)
    before = before_dpo(trainer) if stage == "dpo" else None
    several = run_in(trainer, "several", *on(gpus), *extra, stage=stage)
    assert trainer.metrics(stage)[0]["ranks"] == gpus
    assert before is None or before_dpo(trainer) == before
    trainer.config[stage]["micro_batch_rows"] *= 2
    other = run_in(trainer, "other", *ONE, *extra, stage=stage)
    rounding = difference(other, one)
    trainer.config[stage]["micro_batch_rows"] //= 2
    assert rounding < 0.3
    assert difference(several, one) < max(factor * rounding, 1e-3)
    return one


@pytest.mark.parametrize(
    ("precision", "optimizer", "sums", "gpus"),
    [
        ("fp32", "adamw", "fp32", 2),
        ("bf16", "adamw", "fp32", 2),
        ("bf16", "muon", "fp32", 2),
        ("bf16", "adamw", "bf16", 2),
        ("bf16", "muon", "fp32", 4),
    ],
)
def test_several_gpus_train_as_one_does_and_repeat_to_the_bit(
    several_gpus, precision, optimizer, sums, gpus
):
    need(gpus)
    several_gpus.config["pretrain"] |= {
        "precision": precision,
        "optimizer": optimizer,
        "sums_precision": sums,
        "learning_rate": 1e-3,  # at ten times that, rounding to bf16 moves a tensor by 0.4
    }
    # where sums are rounded to bf16, too, each step adds an error of the size of those of its
    # products, where the order of rows only changes these: 4.2 times was measured
    assert_several_train_as_one(several_gpus, gpus=gpus, factor=4 if sums == "fp32" else 10)
    run_in(several_gpus, "again", *on(gpus))
    first = several_gpus.weights()
    run_in(several_gpus, "once_more", *on(gpus))
    assert several_gpus.weights() == first


@pytest.mark.parametrize(
    ("who", "gpus", "fp8"), [("rank 0", 2, False), ("another", 2, True), ("another", 4, False)]
)
def test_a_killed_rank_ends_all_and_the_rerun_goes_on_to_the_same_bits(
    several_gpus, who, gpus, fp8
):
    need(gpus)
    if fp8:
        make_large_enough_for_fp8(several_gpus)
    run_in(several_gpus, "whole", *on(gpus))
    whole = several_gpus.weights()
    several_gpus.output = several_gpus.output / "killed"
    process = several_gpus.start_until(23, "pretrain", *on(gpus), saved=True)
    others = ranks_of(process)
    assert len(others) == gpus - 1
    (process if who == "rank 0" else others[0]).send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    wait_for_end(others)
    if who == "another":
        killed = rf"rank (\d) of {gpus} was killed by SIGKILL; the other ranks are stopped"
        (rank,) = re.findall(killed, said)
        assert 1 <= int(rank) < gpus
        assert "Traceback" not in said
    assert "going on from step" in several_gpus.run("pretrain", *on(gpus))
    assert several_gpus.weights() == whole


FILL = """
import sys
import cupy

cupy.cuda.Device(1).use()
held, size = [], 1 << 34
while size >= 1 << 20:
    free, _ = cupy.cuda.runtime.memGetInfo()
    try:
        if free - size < int(sys.argv[1]):
            raise MemoryError
        held.append(cupy.cuda.runtime.malloc(size))
    except (MemoryError, cupy.cuda.runtime.CUDARuntimeError):
        size //= 2
print("full", flush=True)
sys.stdin.read()
"""
"""Takes the memory of the second GPU but for some bytes, until its standard input ends."""


@contextlib.contextmanager
def second_gpu_full(but_for: int = 0) -> Iterator[None]:
    command = [sys.executable, "-c", FILL, str(but_for)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "full\n"
        yield
        process.stdin.close()


def test_a_rank_whose_memory_is_full_ends_all_and_the_rerun_goes_on_to_the_same_bits(several_gpus):
    several_gpus.config["model"] |= {"dim": 512, "ffn": 2048, "heads": 8, "kv_heads": 4}
    several_gpus.config["pretrain"] |= {"grow_at": [30], "validate_every": 1000}
    run_in(several_gpus, "whole", *TWO)
    whole = several_gpus.weights()
    several_gpus.output = several_gpus.output / "full"
    process = several_gpus.start_until(5, "pretrain", *TWO)
    others = ranks_of(process)
    process.send_signal(signal.SIGSTOP)  # so that memory is full before the model grows
    assert several_gpus.last_step() < 30
    with second_gpu_full():
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=30)
    wait_for_end(others)
    assert process.returncode == 1
    assert "error  rank 1: pretrain: " in said, said
    assert said.count("rank 1 of 2 ended with status 1, for the reason above; the other") == 1
    assert "Traceback" not in said
    with second_gpu_full(but_for=300_000_000):
        said = several_gpus.run("pretrain", *TWO, status=1)
    assert "error  rank 1: " in said, said
    assert "of its memory are free" in said
    assert "Traceback" not in said
    assert "going on from step" in several_gpus.run("pretrain", *TWO)
    assert several_gpus.weights() == whole


def test_losses_that_are_no_number_on_one_rank_are_left_out_by_both(several_gpus):
    poison(several_gpus)
    several_gpus.run("pretrain", *TWO)
    assert several_gpus.metrics()[0]["skipped"]
    assert_refused_alike_and_resumed(several_gpus, several_gpus.weights(), *TWO)


def test_two_gpus_scale_fp8_as_one_does(several_gpus):
    make_large_enough_for_fp8(several_gpus)
    assert_several_train_as_one(several_gpus)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_run_goes_on_with_two_gpus_within_rounding(several_gpus, gpus):
    need(gpus)
    several_gpus.config["pretrain"]["precision"] = "fp32"
    expected = run_in(several_gpus, "whole", *ONE)
    several_gpus.output = several_gpus.output / "stopped"
    process = several_gpus.start_until(23, "pretrain", *on(gpus))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert f"ranks {gpus} → 2" in several_gpus.run("pretrain", *TWO)
    assert_alike(parameters(several_gpus), expected)


def test_tuning_stages_share_steps_too(several_gpus):
    for stage in ("sft", "dpo"):
        several_gpus.config[stage] |= {
            "precision": "fp32",
            "keep": "final",
            "micro_batch_rows": 2,
            "learning_rate": 1e-3,
        }
    start = several_gpus.output
    assert_several_train_as_one(several_gpus, stage="sft")
    parent = str(start / "one" / "sft" / "model")
    assert_several_train_as_one(several_gpus, "--parent", parent, stage="dpo")


def test_replies_are_shared_and_a_repeated_run_has_the_same_bits(several_gpus):
    several_gpus.run("sft", *ONE)
    parent = "--parent", str(several_gpus.output / "sft/model")
    several_gpus.config["rl"] |= {
        "reward": "regex:hen",
        "epochs": 4,
        "group": 16,
        "batch_tokens": 16000,
        "learning_rate": 1e-2,
    }
    first = []
    for folder, gpus in (("one", ONE), ("two", TWO), ("again", TWO)):
        run_in(several_gpus, folder, *gpus, *parent, stage="rl")
        first.append(next(line for line in several_gpus.metrics("rl") if "loss" in line))
        if folder == "two":
            two = several_gpus.weights("rl")
    for key in ("reward", "entropy", "reply_tokens", "ended"):
        assert first[0][key] == first[1][key], "the first replies have the same bits"
    assert first[1]["gradient_norm"] == pytest.approx(first[0]["gradient_norm"], rel=1e-2)
    assert several_gpus.weights("rl") == two
