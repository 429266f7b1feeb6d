"""A training job of several nodes of a real Slurm: two daemons on this machine."""

import os
import subprocess
import sys

import pytest
from stub_checkout import CI, copy_checkout

from nanoeuler.storage.files import sha256_file
from tests.slurm_cluster import PROFILE, slurm, slurm_cluster
from tests.waiting import CEILING

pytestmark = pytest.mark.slow
TOKENS = "data/corpora/ci/tokens-300/manifest.json"
TOKENIZER = "data/corpora/ci/tokenizer-300/tokenizer.json"


def test_two_nodes_train_to_the_bits_of_two_tasks_without_snakemake(tmp_path):
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    checkout = copy_checkout(tmp_path / "checkout")
    with slurm_cluster(nodes=2) as cluster:
        checkout.run(TOKENS, *CI)
        settings = ("--config", "device=cpu", "slurm={nodes: 2, cpus: 1}")
        said = checkout.run("pretrain", *PROFILE, *CI, *settings, environment=cluster)
        job = said.partition("SLURM jobid ")[2].split()[0]
        assert "NumNodes=2 NumCPUs=2 NumTasks=2" in slurm(cluster, "scontrol", "show", "job", job)
    command = [sys.executable, "-m", "nanoeuler", "pretrain", "--config", "ci.yaml"]
    command += ["--tokens", TOKENS, "--tokenizer", TOKENIZER, "--output", "alone/pretrain"]
    tasks = [
        subprocess.Popen(
            [*command, "--device", "cpu"],
            cwd=checkout.path,
            env=os.environ | {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"},
        )
        for rank in range(2)
    ]
    assert [task.wait(CEILING) for task in tasks] == [0, 0]
    weights = "pretrain/model/model.safetensors"
    hashes = {sha256_file(checkout.path / run / weights) for run in ("results/ci", "alone")}
    assert len(hashes) == 1
