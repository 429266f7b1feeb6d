"""Ranks that `srun` starts find each other through a file, and share every step.

The processes have the environment that Slurm gives its tasks, and connect on this host.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from fuzz.material import environment
from tests.waiting import CEILING, wait_until


def start(trainer, rank, size=2, *extra, job="7"):
    slurm = {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
    }
    return subprocess.Popen(
        trainer.command("pretrain", *extra),
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | slurm,
    )


def end(process):
    """The status and what was printed."""
    _, said = process.communicate(timeout=CEILING)
    return process.returncode, said


def test_tasks_train_to_the_bits_of_ranks_that_were_started_by_rank_0(trainer, shared):
    other = start(trainer, 1)  # which waits for rank 0
    first = start(trainer, 0)
    assert end(first)[0] == 0
    assert end(other) == (0, "")
    assert trainer.weights() == shared.weights()
    assert not list((trainer.output / "pretrain").glob(".ranks*"))


@pytest.mark.parametrize("killed", [0, 1])
def test_all_tasks_end_with_one_of_them(trainer, shared, killed):
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    tasks = [start(trainer, rank) for rank in range(2)]
    wait_until(lambda: trainer.last_step() >= 23, tasks[0])
    tasks[killed].send_signal(signal.SIGKILL)
    status, said = end(tasks[1 - killed])
    assert status == 1
    if killed == 1:
        assert said.count("rank 1 of 2 on ") == 1
        assert " has ended; the other ranks are stopped; run the same command again" in said
    assert "Traceback" not in said
    end(tasks[killed])
    tasks = [start(trainer, rank, job="8") for rank in range(2)]
    assert "going on from step" in end(tasks[0])[1]
    assert end(tasks[1])[0] == 0
    assert trainer.weights() == shared.weights()


def test_the_meeting_is_private_and_a_stranger_does_not_end_it(trainer):
    first = start(trainer, 0)
    file = trainer.output / "pretrain" / ".ranks-7-0-0.json"
    wait_until(file.exists, first)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600

    where = json.loads(file.read_text())
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client((where["host"], where["port"]), "AF_INET", authkey=b"a guess")
    with contextlib.ExitStack() as silent:  # they connect and say nothing
        for _ in range(20):
            connection = socket.create_connection((where["host"], where["port"]))
            silent.enter_context(connection).send(b"\xff" * 3)
        other = start(trainer, 1)
        assert end(first)[0] == end(other)[0] == 0


def test_more_ranks_within_a_task_are_refused(trainer):
    status, said = end(start(trainer, 0, 2, "--ranks", "2"))
    assert status == 1
    assert "srun has started 2 ranks already; leave out --ranks and --gpus" in said
