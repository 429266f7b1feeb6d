"""A run on a Slurm cluster, with a cluster of one that has sbatch, srun and sacct."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from tests.slurm_cluster import PROFILE

TOOLS = Path(__file__).parent / "slurm"


@pytest.fixture
def cluster(tmp_path) -> dict[str, str]:
    """The environment of a login node."""
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    tools, jobs = tmp_path / "tools", tmp_path / "jobs"
    shutil.copytree(TOOLS, tools)
    jobs.mkdir()
    for tool, answer in {
        "sacctmgr": "physics",
        "sshare": "physics",
        "scontrol": "AccountingStorageType = accounting_storage/slurmdbd",
        "sinfo": "",
        "squeue": "",
        "scancel": "",
    }.items():
        (tools / tool).write_text(f"#!/bin/sh\necho {answer}\n")
        (tools / tool).chmod(0o755)
    return {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "FAKE_SLURM": str(jobs)}


@pytest.mark.slow
def test_training_goes_to_the_cluster_and_a_job_that_fails_is_tried_again(done, cluster):
    done.replace("config/config.yaml", "3.0e-3", "1e-3")
    done.replace(
        "config/config.yaml",
        "run: trial",
        "run: trial\nslurm: "
        "{account: physics, partition: gpus, cpu_partition: cpus, hours: 2, cpus: 4}",
    )
    fail_once = f"""\
    once = Path({str(done.path / "failed once")!r})
    if stage == 'pretrain' and not once.exists():
        once.touch()
        return 1
    text = f"""
    done.replace("nanoeuler/__main__.py", "    text = f", fail_once)
    done.run("pretrain", *PROFILE, environment=cluster)
    jobs = [
        file.read_text().splitlines()
        for file in sorted(Path(cluster["FAKE_SLURM"]).glob("*.arguments"))
    ]
    assert len(jobs) == 2, "the first attempt fails, the second does it"
    for arguments in jobs:
        given = dict(itertools.pairwise(arguments))
        assert (given["-A"], given["-p"], given["-t"]) == ("physics", "gpus", "120")
        assert {"--gpus=1", "--cpus-per-task=4", "--signal=TERM@120"} <= set(arguments)
    assert [call.split()[0] for call in done.calls[-2:]] == ["pretrain", "pretrain"]
    assert "plan" not in [call.split()[0] for call in done.calls[-3:]]


@pytest.mark.slow
def test_training_on_two_nodes_asks_for_a_task_for_each_gpu_and_starts_them(done, cluster):
    done.replace("config/config.yaml", "3.0e-3", "1e-3")
    done.replace("config/config.yaml", "run: trial", "run: trial\ngpus: 2\nslurm: {nodes: 2}")
    said = done.run("pretrain", "-p", *PROFILE, environment=cluster)
    (arguments,) = [file.read_text() for file in Path(cluster["FAKE_SLURM"]).glob("*.arguments")]
    asked = {"--nodes=2", "--ntasks=4", "--ntasks-per-gpu=1", "--gpus=4", "--cpus-per-task=8"}
    assert asked <= set(arguments.splitlines())
    started = "srun --nodes=2 --ntasks=4 --cpus-per-task=8 --kill-on-bad-exit=1 python -m nanoeuler"
    assert f"{started} pretrain" in said


def test_web_pages_are_extracted_by_jobs_where_nodes_have_network(checkout, cluster):
    checkout.replace("config/config.yaml", "run: trial", "run: trial\nslurm: {network: true}")
    checkout.run("download", *PROFILE, environment=cluster)
    (arguments,) = [file.read_text() for file in Path(cluster["FAKE_SLURM"]).glob("*.arguments")]
    assert {"--cpus-per-task=1", "--mem", "2000"} <= set(arguments.split())
    assert "extract_fineweb" in arguments
    assert sum(call.startswith("fineweb ") for call in checkout.calls) == 1


def test_what_needs_the_network_stays_on_the_login_node(checkout, cluster):
    checkout.run("download", *PROFILE, environment=cluster)
    assert not list(Path(cluster["FAKE_SLURM"]).iterdir())
    assert {call.split()[0] for call in checkout.calls} == {
        "gutenberg",
        "fineweb",
        "instructions",
        "preferences",
        "questions",
    }
