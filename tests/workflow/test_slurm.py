"""The pipeline on a real Slurm: a cluster of this machine alone, without an accounting database.

Where this user may make networks, the node reaches nothing but the login node.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stub_checkout import CI, ROOT, Checkout, copy_checkout

from nanoeuler.config import load
from nanoeuler.storage.files import sha256_file
from tests.slurm_cluster import PROFILE, networks_can_be_made, slurm, slurm_cluster
from tests.waiting import CEILING, wait_until

STAGES = ("pretrain", "sft", "sft_scratch", "dpo")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a cluster's login node, from which the cluster is gone afterwards."""
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    network = "none" if networks_can_be_made() else "all"
    with slurm_cluster(network=network) as environment:
        yield environment


@pytest.fixture(scope="module")
def submitted(tmp_path_factory) -> Checkout:
    """A checkout with the whole pipeline, and nothing done."""
    return copy_checkout(tmp_path_factory.mktemp("submitted"))


def start(checkout: Checkout, cluster: dict[str, str], *arguments: str) -> subprocess.Popen:
    """Start Snakemake, which prints to `snakemake.log`."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (checkout.path / "snakemake.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *PROFILE, *CI, *arguments],
            cwd=checkout.path,
            env=inherited | cluster | {"XDG_CACHE_HOME": str(checkout.path / "cache")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def trainer_of(folder: Path) -> int | None:
    """The process that pretrains in `folder`."""
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            trains = words[1:4] == [b"-m", b"nanoeuler", b"pretrain"]
            if trains and (process / "cwd").resolve() == folder:
                return int(process.name)
        except OSError:  # it has ended
            continue
    return None


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("device=auto", r"device: no node of partition main has a GPU; set `device: cpu`"),
        (
            "slurm={cpus: 4000}",
            r"slurm\.cpus: 4000 CPUs are more than a node of partition main has",
        ),
        ("slurm={cpu_partition: big}", r"slurm\.cpu_partition: the cluster has no partition big"),
    ],
)
def test_what_the_cluster_lacks_is_said_before_anything_is_submitted(
    submitted, cluster, setting, sentence
):
    device = () if setting.startswith("device") else ("device=cpu",)
    refused = submitted.snakemake(*PROFILE, *CI, "--config", *device, setting, environment=cluster)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert re.search(f"error  {sentence}", said), said
    assert "nothing was submitted" in said
    assert "has been submitted" not in said


def test_the_plan_says_what_jobs_ask_for_and_what_the_cluster_lacks(cluster, command, monkeypatch):
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    file = str(Path(__file__).parent / "ci.yaml")
    monkeypatch.chdir(ROOT)
    status, out, err = command("plan", file, "--slurm")
    assert status == 1
    assert "models     jobs in partition main: 1 GPU, " in out
    assert "no node of partition main has a GPU" in out + err
    with_cpu = json.dumps(load(file, overrides=["device=cpu"]))
    status, out, err = command("plan", "--config", with_cpu, "--slurm")
    assert status == 0, out + err
    assert re.search(r"text +jobs in partition main: \d+ CPUs, 3,000 MB, 12 hours each", out)


def test_the_node_has_no_network(cluster):
    if not networks_can_be_made():
        pytest.skip("this user may not make networks (ip, nsenter and unshare of root)")
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    tried = subprocess.run(
        ["srun", sys.executable, "-c", connect],
        env=os.environ | cluster,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "Network is unreachable" in tried.stderr


def test_a_run_whose_job_met_its_wall_time_has_the_bits_of_one_without_a_cluster(
    submitted, cluster, pipeline
):
    """The trainer is halted behind its first line, until Slurm tells it to go on and to end.

    A wall time that is less than two minutes away would leave it no time to save.
    """
    log, train_log = (
        submitted.path / "snakemake.log",
        submitted.path / "results/ci/pretrain/train.log",
    )
    submitted.run("download", *CI)
    process = start(submitted, cluster, "--config", "device=cpu")
    try:
        wait_until(lambda: train_log.exists() and "steps=" in train_log.read_text(), process, log)
        pid = trainer_of(submitted.path)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        job = re.search(r"SLURM jobid (\d+) \(log: \S+rule_pretrain/", log.read_text())
        elapsed = slurm(cluster, "squeue", "--noheader", f"--jobs={job[1]}", "--format=%M")
        limit = 3 + int(elapsed.split(":")[-2])  # minutes
        slurm(cluster, "scontrol", "update", f"JobId={job[1]}", f"TimeLimit={limit}")
        assert process.wait(timeout=CEILING) == 0, log.read_text()
    finally:
        process.terminate()
        process.wait()
    said = log.read_text()
    assert said.count("Trying to restart job") == 1
    frightening = ("via sacct", "accounting storage", "SLURM account", "MinJobAge", "never awaited")
    for words in frightening:
        assert words not in said
    assert re.search(r"^resume +going on from step \d", train_log.read_text(), re.MULTILINE)
    for stage in STAGES:
        weights = f"results/ci/{stage}/model/model.safetensors"
        assert sha256_file(submitted.path / weights) == sha256_file(pipeline.path / weights), stage
    assert (submitted.path / "results/ci/report.html").exists()
    assert slurm(cluster, "squeue", "--noheader") == ""


def test_a_job_that_scancel_ended_is_not_submitted_again(submitted, cluster):
    slurm(cluster, "scontrol", "update", "PartitionName=main", "State=DOWN")
    process = start(submitted, cluster, "--config", "device=cpu", "--forcerun", "write_report")
    log = submitted.path / "snakemake.log"
    try:
        wait_until(lambda: slurm(cluster, "squeue", "--noheader", "--format=%i"), process, log)
        slurm(cluster, "scancel", *slurm(cluster, "squeue", "--noheader", "--format=%i").split())
        assert process.wait(timeout=CEILING) != 0
    finally:
        process.terminate()
        process.wait()
        slurm(cluster, "scontrol", "update", "PartitionName=main", "State=UP")
    assert "SLURM status is: 'CANCELLED'" in log.read_text()
    assert "Trying to restart" not in log.read_text()
    assert slurm(cluster, "squeue", "--noheader") == ""
