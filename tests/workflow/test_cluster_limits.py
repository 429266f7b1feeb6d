"""What a Slurm cluster lacks for a job is said in a sentence, before the job is submitted."""

from math import inf

import pytest

from nanoeuler.workflow.cluster import (
    Node,
    ask_accounts,
    ask_cluster,
    obstacle,
    obstacles,
    read_node,
    usual_cpus,
)
from nanoeuler.workflow.jobs import cluster_resources, srun, task_gpus
from nanoeuler.workflow.machine import job_gpus, training_gpus

CLUSTER = [
    read_node("short*|8|64000|(null)|30:00"),
    read_node("gpus|64|512000|gpu:h200:8(S:0-1),nvme:1|2-00:00:00"),
    read_node("gpus|16|128000|gpu:2|2-00:00:00"),
]
JOB = {"slurm_partition": None, "cpus_per_task": 4, "mem_mb": 1000, "runtime": 30, "gpu": 0}


def test_nodes_are_read_as_sinfo_prints_them():
    assert CLUSTER[0] == Node("short", True, cpus=8, megabytes=64000, gpus=0, hours=0.5)
    assert CLUSTER[1] == Node("gpus", False, cpus=64, megabytes=512000, gpus=8, hours=48)
    assert read_node("all|2+|900+|gpu:a:1,gpu:b:2|30:00").gpus == 3
    assert read_node("all|2|900|(null)|infinite").hours == inf


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"slurm_partition": "gpus", "gpu": 8, "cpus_per_task": 64, "runtime": 2880}, None),
        ({"slurm_partition": "short,gpus", "gpu": 1, "runtime": 2880}, None),
        (
            {"gpu": 1},
            "device: no node of partition short has a GPU; set slurm.partition to one that has "
            "(gpus), or set `device: cpu`",
        ),
        (
            {"slurm_partition": "gpus", "gpu": 16},
            "gpus: no node of partition gpus has 16 GPUs; set `gpus: 1`",
        ),
        (
            {"cpus_per_task": 16},
            "slurm.cpus: 16 CPUs are more than a node of partition short has; "
            "set at most 8, or null",
        ),
        (
            {"slurm_partition": "long"},
            "slurm.cpu_partition: the cluster has no partition long; name one of gpus, short",
        ),
        (
            {"slurm_partition": "gpus", "gpu": 1, "cpus_per_task": 32, "mem_mb": 600000},
            "slurm.partition: no node of partition gpus has the 600000 MB of memory that a job "
            "asks for, but at most 512000 MB; name a partition with larger nodes",
        ),
        ({"slurm_partition": "gpus", "gpu": 4, "nodes": 2, "tasks": 4}, None),
        (
            {"slurm_partition": "gpus", "gpu": 16, "nodes": 2, "tasks": 16},
            "slurm.nodes: partition gpus has fewer than 2 nodes that can run a training job; "
            "set at most 1",
        ),
        (
            {"slurm_partition": "gpus", "nodes": 2, "tasks": 16, "cpus_per_task": 16},
            "slurm.cpus: 128 CPUs are more than a node of partition gpus has; "
            "set at most 64, or null",
        ),
        (
            {"runtime": 720},
            "slurm.hours: 12 hours are more than partition short allows; "
            "set at most 0.5: a job that reaches its wall time is resumed",
        ),
    ],
)
def test_a_job_that_would_never_run_is_explained(changes, sentence):
    assert obstacle(CLUSTER, JOB | changes) == sentence


@pytest.mark.parametrize("account", ["chemistry", "Physics, chemistry"])
def test_an_account_that_is_none_of_the_users_is_named(account):
    job = JOB | {"slurm_account": account}
    assert obstacles(CLUSTER, ["biology", "physics"], [job, job]) == [
        "slurm.account: this cluster gives you no account chemistry; name one of biology, physics"
    ]
    assert obstacles(CLUSTER, ["chemistry", "physics"], [job]) == []


def test_a_cluster_without_a_default_partition_wants_one_named():
    assert obstacle(CLUSTER[1:], JOB) == (
        "slurm.cpu_partition: the cluster has no default partition; name one of gpus"
    )


def test_where_nothing_is_known_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_cluster() == []
    assert ask_accounts() == []
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # which no user has
    assert ask_accounts() == []
    unknown = JOB | {"cpus_per_task": 4000, "slurm_account": "physics"}
    assert obstacles([], [], [unknown]) == []


def test_a_job_takes_the_cpus_that_nodes_have_unless_a_number_is_set(monkeypatch):
    assert usual_cpus(CLUSTER, None) == 8
    assert usual_cpus(CLUSTER, "gpus") == usual_cpus([], None) == 16
    config = {"slurm": {"partition": "gpus"}}
    assert cluster_resources(config, CLUSTER)["cpus_per_task"] == 8
    assert cluster_resources(config, CLUSTER, gpus=1)["cpus_per_task"] == 16
    assert cluster_resources({"slurm": {"cpus": 3}}, CLUSTER)["cpus_per_task"] == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "5")  # in the job, where sinfo may be out of reach
    assert cluster_resources(config, None)["cpus_per_task"] == 5


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        (8, {"nodes": 2, "tasks": 16, "tasks_per_gpu": 1, "cpus_per_task": 2, "mpi": "srun"}),
        (0, {"nodes": 2, "tasks": 2, "tasks_per_gpu": None, "cpus_per_task": 8, "mpi": "srun"}),
    ],
)
def test_a_job_of_two_nodes_asks_for_a_task_for_each_gpu_or_node(gpus, asked):
    config = {"slurm": {"partition": "gpus"}}
    resources = cluster_resources(config, CLUSTER, gpus, nodes=2)
    assert {name: resources[name] for name in asked} == asked


def test_a_run_without_a_gpu_asks_for_none_and_for_no_partition_with_gpus():
    assert (job_gpus("cpu"), job_gpus("reference"), job_gpus("auto"), job_gpus("cuda")) == (
        0,
        0,
        1,
        1,
    )
    assert [training_gpus({"device": name, "gpus": 8}) for name in ("cpu", "auto")] == [0, 8]
    config = {"slurm": {"partition": "gpus", "cpu_partition": "short"}}
    assert cluster_resources(config, CLUSTER, job_gpus("cpu"))["slurm_partition"] == "short"
    assert cluster_resources(config, CLUSTER, job_gpus("cuda"))["slurm_partition"] == "gpus"


def test_a_task_of_srun_takes_one_of_the_gpus_of_its_node():
    class Resources(dict):
        __getattr__ = dict.__getitem__

    alone = Resources(gpu=8)
    assert (srun(alone, True), task_gpus(alone, True)) == ("", 8)
    several = Resources(gpu=8, nodes=2, tasks=16, cpus_per_task=4, mpi="srun")
    words = "srun --nodes=2 --ntasks=16 --cpus-per-task=4 --kill-on-bad-exit=1 "
    assert (srun(several, True), task_gpus(several, True)) == (words, 1)
    assert (srun(several, False), task_gpus(several, False)) == ("", 8)
    assert task_gpus(Resources(several, gpu=0), True) == 0
