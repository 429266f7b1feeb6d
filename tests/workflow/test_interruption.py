"""A workflow that is interrupted in any way resumes and ends with bit-identical weights."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from stub_checkout import CI, Checkout

from nanoeuler.files import sha256_file
from nanoeuler.model.files import CONFIG, TOKENIZER, load_model
from nanoeuler.model.files import WEIGHTS as MODEL_WEIGHTS
from tests.waiting import CEILING, wait_until

LONGER = ("--config", "pretrain={tokens: 300000, log_every: 1, checkpoint_minutes: 0.002}")
COMMAND = ("pretrain", *CI, *LONGER)
WEIGHTS = "results/ci/pretrain/model/model.safetensors"


@pytest.fixture(scope="module")
def uninterrupted(pipeline, tmp_path_factory) -> str:
    """The hash of the weights of a run that nothing disturbed."""
    checkout = without_training(pipeline, tmp_path_factory.mktemp("uninterrupted"))
    checkout.run(*COMMAND)
    return sha256_file(checkout.path / WEIGHTS)


@pytest.fixture
def checkout(pipeline, tmp_path) -> Checkout:
    return without_training(pipeline, tmp_path)


def without_training(pipeline: Checkout, folder) -> Checkout:
    """A copy of the pipeline's checkout in which nothing has been trained."""
    shutil.copytree(
        pipeline.path, folder / "checkout", symlinks=True, ignore=shutil.ignore_patterns("results")
    )
    return Checkout(folder / "checkout")


class Interrupted:
    """A `snakemake pretrain` in a process group of its own, caught in the middle of training."""

    def __init__(self, checkout: Checkout, step: int = 30):
        self.checkout = checkout
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        log = checkout.path / "said.txt"
        with open(log, "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *COMMAND],
                cwd=checkout.path,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        wait_until(lambda: self.step >= step, self.process, log)

    @property
    def step(self) -> int:
        metrics = self.checkout.path / "results/ci/pretrain/metrics.jsonl"
        if not metrics.exists():
            return 0
        return sum('"step"' in line for line in metrics.read_text().splitlines())

    @property
    def trainer(self) -> int:
        lock = self.checkout.path / "results/ci/pretrain/checkpoints/lock.json"
        return json.loads(lock.read_text())["pid"]


def test_ctrl_c(checkout, uninterrupted):
    interrupted = Interrupted(checkout)
    # a terminal sends it to all processes in the foreground
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert interrupted.process.wait(timeout=CEILING) != 0
    said = (checkout.path / "said.txt").read_text()
    assert said.splitlines()[-1].startswith("interrupted  to go on, run the same command again")
    assert "Traceback" not in said
    assert "Error in rule" not in said
    assert not (checkout.path / WEIGHTS).exists()
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted


def test_a_finished_model_is_usable_until_its_successor_is_whole(pipeline, tmp_path, uninterrupted):
    """Ctrl-C and kill -9 of Snakemake, which has deleted the outputs of the rule by then."""
    shutil.copytree(pipeline.path, tmp_path / "checkout", symlinks=True)
    checkout = Checkout(tmp_path / "checkout")
    folder = checkout.path / "results/ci/pretrain/model"
    finished = load_model(folder)
    for number in (signal.SIGINT, signal.SIGKILL):
        (folder.parent / "metrics.jsonl").unlink()
        interrupted = Interrupted(checkout, step=5)
        assert not any((folder / name).exists() for name in (CONFIG, MODEL_WEIGHTS, TOKENIZER))
        assert (load_model(folder).parameters == finished.parameters).all()
        os.killpg(interrupted.process.pid, number)
        interrupted.process.wait(timeout=CEILING)
        assert (load_model(folder).parameters == finished.parameters).all()
        checkout.run("--unlock", *CI)
    checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted
    assert not folder.with_name("model.previous").exists()


def test_kill_9_of_the_trainer(checkout, uninterrupted):
    interrupted = Interrupted(checkout)
    os.kill(interrupted.trainer, signal.SIGKILL)
    assert interrupted.process.wait(timeout=CEILING) != 0
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted


def test_kill_9_of_snakemake_leaves_a_trainer_that_is_respected_until_it_is_gone(
    checkout, uninterrupted
):
    interrupted = Interrupted(checkout)
    trainer = interrupted.trainer
    os.kill(trainer, signal.SIGSTOP)  # so that it does not finish while we look at it
    interrupted.process.kill()
    interrupted.process.wait()
    refused = checkout.snakemake(*COMMAND)
    assert refused.returncode != 0
    assert "the last Snakemake in this folder was killed" in refused.stdout + refused.stderr
    assert "another trainer is at work there since" in refused.stdout + refused.stderr
    assert f"kill {trainer}" in refused.stdout + refused.stderr
    os.kill(trainer, signal.SIGKILL)
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted
