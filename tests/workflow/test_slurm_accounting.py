"""Jobs on a real Slurm with an accounting database: `sacct` says how they ended."""

import getpass
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.slurm_cluster import PROFILE, slurm, slurm_cluster
from tests.waiting import CEILING, wait_until

ONE_JOB = (*PROFILE, "--config", "device=cpu", "--verbose", "results/trial/gradients.json")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of the login node."""
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    with slurm_cluster(accounting="slurmdbd") as environment:
        yield environment


def states(cluster) -> list[str]:
    return slurm(cluster, "sacct", "-X", "--noheader", "--format=State%20").split("\n")


def test_an_account_that_is_none_of_the_users_is_refused_before_anything_is_submitted(
    checkout, cluster
):
    slurm(cluster, "sacctmgr", "--immediate", "add", "account", "physics")
    slurm(cluster, "sacctmgr", "--immediate", "add", "user", getpass.getuser(), "account=physics")
    account = ("--config", "device=cpu", "slurm={account: chemistry}")
    refused = checkout.snakemake(*PROFILE, *account, environment=cluster)
    assert refused.returncode != 0
    assert "gives you no account chemistry; name one of physics" in refused.stderr
    assert "has been submitted" not in refused.stderr


def test_a_job_that_failed_and_its_retry_are_watched_by_sacct(checkout, cluster):
    fails = f"""\
    once = Path({str(checkout.path / "failed once")!r})
    if not once.exists():
        once.touch()
        return 1
    text = f"""
    checkout.replace("nanoeuler/__main__.py", "    text = f", fails)
    said = checkout.run(*ONE_JOB, environment=cluster)
    assert "Status query timing (cycle): command=sacct" in said
    assert "command=squeue" not in said
    assert said.count("Trying to restart job") == 1
    assert [state.strip() for state in states(cluster)[:2]] == ["FAILED", "COMPLETED"]


def test_a_job_that_scancel_ended_ends_the_run(checkout, cluster):
    """`sacct` names who cancelled it: CANCELLED by 1000."""
    slurm(cluster, "scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        with ThreadPoolExecutor() as threads:
            running = threads.submit(checkout.snakemake, *ONE_JOB, environment=cluster)
            wait_until(lambda: waiting(cluster) or running.done())
            slurm(cluster, "scancel", *waiting(cluster))
            ended = running.result(timeout=CEILING)
    finally:
        slurm(cluster, "scontrol", "update", "PartitionName=main", "State=UP")
    assert ended.returncode != 0
    assert "SLURM status is: 'CANCELLED'" in ended.stderr
    assert "Trying to restart" not in ended.stderr


def test_other_jobs_of_the_rule_of_a_cancelled_job_keep_their_retries(checkout, cluster):
    """One of four evaluations is cancelled before it starts, and one fails once."""
    checkout.run("pretrain", "sft", "sft_scratch", "dpo", "--config", "device=cpu")
    fails = f"""\
    once = Path({str(checkout.path / "failed once")!r})
    if stage == "evaluate" and options.output.stem == "dpo" and not once.exists():
        once.touch()
        return 1
    text = f"""
    checkout.replace("nanoeuler/__main__.py", "    text = f", fails)
    evaluation = (*PROFILE, "--config", "device=cpu", "--keep-going", "evaluate")
    slurm(cluster, "scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        with ThreadPoolExecutor() as threads:
            running = threads.submit(checkout.snakemake, *evaluation, environment=cluster)
            wait_until(lambda: len(waiting(cluster)) == 4 or running.done())
            comments = slurm(cluster, "squeue", "--noheader", "--format=%i %k").splitlines()
            cancelled = [line.split()[0] for line in comments if line.endswith("pretrain")]
            slurm(cluster, "scancel", *cancelled)
            slurm(cluster, "scontrol", "update", "PartitionName=main", "State=UP")
            ended = running.result(timeout=CEILING)
    finally:
        slurm(cluster, "scontrol", "update", "PartitionName=main", "State=UP")
    assert ended.returncode != 0
    assert ended.stderr.count("Trying to restart job") == 1
    written = {path.stem for path in (checkout.path / "results/trial/evaluation").glob("*.json")}
    assert written == {"sft", "sft_scratch", "dpo"}


def waiting(cluster) -> list[str]:
    return slurm(cluster, "squeue", "--noheader", "--format=%i").split()
