"""A workflow that is interrupted in any way resumes and ends with bit-identical weights."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys

import pytest
from stub_checkout import CI, Checkout

from nanoeuler.log import ATTEMPT
from nanoeuler.model.files import CONFIG, TOKENIZER, load_model
from nanoeuler.model.files import WEIGHTS as MODEL_WEIGHTS
from nanoeuler.storage.files import sha256_file
from nanoeuler.system.processes import process_start
from tests.waiting import CEILING, wait_until

LONGER = ("--config", "pretrain={tokens: 300000, log_every: 1, checkpoint_minutes: 0.002}")
COMMAND = ("pretrain", *CI, *LONGER)
SNAKEMAKE = ("-m", "snakemake", *COMMAND)
RUN = ("-m", "nanoeuler", "run", "ci.yaml", "pretrain", "--", *LONGER)
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

    def __init__(self, checkout: Checkout, step: int = 30, program: tuple[str, ...] = SNAKEMAKE):
        self.checkout = checkout
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        log = checkout.path / "said.txt"
        with open(log, "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                cwd=checkout.path,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        wait_until(lambda: steps(checkout) >= step, self.process, log)


def steps(checkout: Checkout) -> int:
    metrics = checkout.path / "results/ci/pretrain/metrics.jsonl"
    if not metrics.exists():
        return 0
    return sum('"step"' in line for line in metrics.read_text().splitlines())


def trainer_of(checkout: Checkout) -> int:
    lock = checkout.path / "results/ci/pretrain/checkpoints/lock.json"
    return json.loads(lock.read_text())["pid"]


def said_by_trainer(checkout: Checkout) -> str:
    return (checkout.path / "results/ci/pretrain/train.log").read_text()


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
    os.kill(trainer_of(checkout), signal.SIGKILL)
    assert interrupted.process.wait(timeout=CEILING) != 0
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted


def test_kill_9_of_snakemake_ends_its_trainer_when_that_has_saved(checkout, uninterrupted):
    interrupted = Interrupted(checkout)
    trainer = trainer_of(checkout)
    os.kill(trainer, signal.SIGSTOP)  # so that it does not finish while we look at it
    logged = said_by_trainer(checkout)
    interrupted.process.kill()
    interrupted.process.wait()
    refused = checkout.snakemake(*COMMAND)
    assert refused.returncode != 0
    assert "the last Snakemake in this folder was killed" in refused.stdout + refused.stderr
    assert "another trainer is at work there since" in refused.stdout + refused.stderr
    assert f"kill {trainer}" in refused.stdout + refused.stderr
    os.kill(trainer, signal.SIGCONT)
    wait_until(lambda: process_start(trainer) is None)
    assert not (checkout.path / WEIGHTS).exists()
    said = said_by_trainer(checkout)
    assert said.startswith(logged)
    assert "saving after this step" in said
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted
    assert said_by_trainer(checkout).startswith(said)


def test_a_trainer_keeps_its_log_while_another_is_refused(checkout, uninterrupted):
    interrupted = Interrupted(checkout)
    trainer = trainer_of(checkout)
    os.kill(trainer, signal.SIGSTOP)
    refused = checkout.snakemake("--nolock", *COMMAND)
    os.kill(trainer, signal.SIGCONT)
    assert refused.returncode != 0
    assert interrupted.process.wait(timeout=CEILING) == 0
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted
    log = "results/ci/pretrain/train.log"
    shown = (refused.stdout + refused.stderr).partition(f"Logfile {log}:\n")[2].splitlines()
    refusal = shown[1 : shown.index(shown[0], 1)]  # between two rulers
    assert refusal[0].startswith(ATTEMPT)
    assert "another trainer is at work there since" in refusal[-1]
    first, second = said_by_trainer(checkout).split("\n".join(refusal) + "\n")
    assert first
    assert second
    logged = (first + second).splitlines()
    printed = (checkout.path / "said.txt").read_text().splitlines()
    begins = printed.index(logged[0])
    assert printed[begins : begins + len(logged)] == logged


def test_kill_9_of_nanoeuler_run_ends_all_that_it_started(checkout, uninterrupted):
    interrupted = Interrupted(checkout, program=RUN)
    trainer = trainer_of(checkout)
    interrupted.process.kill()
    interrupted.process.wait()
    wait_until(lambda: process_start(trainer) is None)
    wait_until(lambda: "interrupted  to go on" in (checkout.path / "said.txt").read_text())
    assert not (checkout.path / WEIGHTS).exists()
    assert "SIGINT: saving after this step" in said_by_trainer(checkout)
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted


@pytest.mark.parametrize("program", [SNAKEMAKE, RUN])
def test_a_closed_terminal_ends_the_workflow_when_the_trainer_has_saved(
    checkout, uninterrupted, program
):
    pid, ours = pty.fork()
    if not pid:
        os.chdir(checkout.path)
        os.environ.pop("PYTHONPATH", None)
        os.execv(sys.executable, [sys.executable, *program])

    def has_begun() -> bool:
        if select.select([ours], [], [], 0)[0]:
            os.read(ours, 10_000)
        return steps(checkout) >= 30

    wait_until(has_begun)
    trainer = trainer_of(checkout)
    os.close(ours)
    os.waitpid(pid, 0)
    wait_until(lambda: process_start(trainer) is None)
    assert not (checkout.path / WEIGHTS).exists()
    assert "the state is saved" in said_by_trainer(checkout)
    assert "going on from step" in checkout.run(*COMMAND)
    assert sha256_file(checkout.path / WEIGHTS) == uninterrupted
