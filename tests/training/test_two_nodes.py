"""A training stage on two nodes of a real Slurm: two daemons on this machine."""

import shlex
import shutil
import signal
import subprocess

import psutil
import pytest

from fuzz.material import environment
from tests.slurm_cluster import slurm, slurm_cluster
from tests.waiting import CEILING, wait_until

pytestmark = pytest.mark.slow
NODES = ("--nodes=2", "--ntasks=2", "--cpus-per-task=1", "--mem=1000")


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster(nodes=2) as login:
        yield login


def srun(cluster, trainer, stage: str = "pretrain", *extra: str) -> subprocess.Popen:
    return subprocess.Popen(
        ["srun", *NODES, "--kill-on-bad-exit=1", *trainer.command(stage, *extra)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | cluster,
    )


def tasks(trainer) -> list[psutil.Process]:
    """The processes of the stage."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        trains = "nanoeuler" in words and str(trainer.output / "pretrain") in words
        if trains and "SLURM_PROCID" in variables and words[0] != "srun":
            found.append(process)
    return sorted(found, key=lambda process: int(process.environ()["SLURM_PROCID"]))


def test_two_nodes_train_to_the_bits_of_two_ranks_on_one(cluster, trainer, shared):
    process = srun(cluster, trainer)
    assert process.communicate(timeout=CEILING)[1].count("pretrain parameters=") == 1
    assert process.returncode == 0
    assert trainer.weights() == shared.weights()


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_two_nodes_tune_to_the_bits_of_two_ranks_on_one(cluster, trainer, tuned, stage):
    parent = ("--parent", str(tuned))
    trainer.run(stage, *parent, "--ranks", "2")
    weights = trainer.weights(stage)
    shutil.rmtree(trainer.output / stage)
    process = srun(cluster, trainer, stage, *parent)
    assert process.communicate(timeout=CEILING)[1].count(f"{stage} parameters=") == 1
    assert process.returncode == 0
    assert trainer.weights(stage) == weights
    assert trainer.metrics(stage)[0]["ranks"] == 2


def test_a_killed_task_ends_the_step_and_the_next_one_goes_on(cluster, trainer, shared):
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = srun(cluster, trainer)
    wait_until(lambda: trainer.last_step() >= 23, process)
    tasks(trainer)[1].send_signal(signal.SIGKILL)
    said = process.communicate(timeout=30)[1]
    assert process.returncode
    assert "rank 1 of 2 on " in said
    assert not tasks(trainer)
    again = srun(cluster, trainer)
    assert "going on from step" in again.communicate(timeout=CEILING)[1]
    assert trainer.weights() == shared.weights()


def test_a_requeued_job_goes_on_to_the_same_bits(cluster, trainer, shared, tmp_path):
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nexec srun {shlex.join(trainer.command('pretrain'))}\n")
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--requeue", *NODES, f"--output={tmp_path}/job.log", str(script)],
        env=environment() | cluster,
        check=True,
        capture_output=True,
        text=True,
    )
    job = submitted.stdout.strip()
    wait_until(lambda: trainer.last_step() >= 23)
    slurm(cluster, "scontrol", "requeue", job)
    wait_until(lambda: slurm(cluster, "squeue", "--noheader", "--format=%T") == "PENDING\n")
    # not in two minutes, nor in the second in which the job was revoked, or it would be refused
    slurm(cluster, "scontrol", "update", f"JobId={job}", "StartTime=now+2")
    model = trainer.output / "pretrain" / "model" / "model.safetensors"
    wait_until(lambda: model.exists() and not slurm(cluster, "squeue", "--noheader"))
    assert trainer.weights() == shared.weights()
    assert "going on from step" in (tmp_path / "job.log").read_text()
