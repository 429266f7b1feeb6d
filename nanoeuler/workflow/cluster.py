"""Partitions and nodes of a Slurm cluster, and whether the jobs of a run fit there."""

import getpass
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from nanoeuler.log import counted
from nanoeuler.system.processes import output_of

USUAL_CPUS = 16
"""CPUs of a job where the configuration leaves it to the cluster, and nodes have as many."""
PATIENCE = 30
"""Seconds that the cluster may take to answer."""


@dataclass(frozen=True)
class Node:
    """A node, once for each partition that it belongs to."""

    partition: str
    default: bool
    """Whether jobs that name no partition go to this one."""
    cpus: int
    megabytes: int
    gpus: int
    hours: float
    """Longest wall time of the partition."""


def ask_cluster() -> list[Node]:
    """Return the nodes of the cluster; none without Slurm, or when its controller is silent."""
    command = ["sinfo", "--noheader", "--Node", "--format=%P|%c|%m|%G|%l"]
    return [read_node(line) for line in answer_of(command) if line.count("|") == 4]


def ask_accounts() -> list[str]:
    """Return the accounts that jobs of this user may name; none where Slurm keeps no accounts."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return []
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    command += [f"user={user}", "format=account"]
    return sorted({line.strip() for line in answer_of(command) if line.strip()})


def answer_of(command: list[str]) -> list[str]:
    """The lines that a command of Slurm prints; none where it is missing, fails or is silent."""
    return (output_of(command, PATIENCE) or "").splitlines()


def read_node(line: str) -> Node:
    """Read `partition*|CPUs|megabytes|generic resources|wall time`, as `sinfo` prints it."""
    partition, cpus, megabytes, generic, time = (field.strip() for field in line.split("|"))
    gpus = re.findall(r"\bgpu:(?:[^:,()]+:)?(\d+)", generic)
    return Node(
        partition=partition.removesuffix("*"),
        default=partition.endswith("*"),
        cpus=int(cpus.rstrip("+")),
        megabytes=int(megabytes.rstrip("+")),
        gpus=sum(map(int, gpus)),
        hours=read_hours(time),
    )


def read_hours(time: str) -> float:
    """Read a wall time: `infinite`, `days-hours:minutes:seconds`, or the end of that."""
    if not time[:1].isdigit():
        return inf
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds = [0] * (3 - len(parts)) + parts
    return 24 * int(days or 0) + hours + minutes / 60 + seconds / 3600


def nodes_of(cluster: Iterable[Node], partition: str | None) -> list[Node]:
    """The nodes for jobs that name `partition`, or none; Slurm takes several as `a,b`."""
    names = partition.split(",") if partition else []
    return [node for node in cluster if (node.partition in names if names else node.default)]


def usual_cpus(cluster: Iterable[Node], partition: str | None) -> int:
    """CPUs of a job for which the configuration names no number."""
    most = max((node.cpus for node in nodes_of(cluster, partition)), default=USUAL_CPUS)
    return min(USUAL_CPUS, most)


def obstacles(
    cluster: Sequence[Node], accounts: Sequence[str], jobs: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Say, once each, why jobs would be refused or wait for ever."""
    found = [
        sentence
        for job in jobs
        for sentence in (unknown_account(accounts, job), obstacle(cluster, job))
    ]
    return list(dict.fromkeys(filter(None, found)))


def unknown_account(accounts: Sequence[str], job: Mapping[str, Any]) -> str | None:
    """Say that a job names an account that is none of the user's, if those are known."""
    for name in re.split(r"[,\s]+", job.get("slurm_account") or ""):
        if name and accounts and name.lower() not in accounts:
            return (
                f"slurm.account: this cluster gives you no account {name}; "
                f"name one of {', '.join(accounts)}"
            )
    return None


def obstacle(cluster: Sequence[Node], job: Mapping[str, Any]) -> str | None:
    """Say why the cluster would refuse a job or let it wait for ever, and what to do.

    `job` has the resources that it asks for. None when it fits, or when nothing is known.
    """
    partition, nodes_wanted = job.get("slurm_partition"), job.get("nodes") or 1
    gpus = (job.get("gpu") or 0) // nodes_wanted
    tasks = (job.get("tasks") or 1) // nodes_wanted
    key = "slurm.partition" if gpus else "slurm.cpu_partition"
    nodes = nodes_of(cluster, partition)
    if not cluster:
        return None
    if not nodes:
        names = ", ".join(sorted({node.partition for node in cluster}))
        lacks = f"no partition {partition}" if partition else "no default partition"
        return f"{key}: the cluster has {lacks}; name one of {names}"
    where = f"partition {', '.join(sorted({node.partition for node in nodes}))}"
    able = [node for node in nodes if node.gpus >= gpus]
    if not able:
        others = sorted({node.partition for node in cluster if node.gpus >= gpus})
        named = f"set {key} to one that has ({', '.join(others)}), or " if others else ""
        lacks, instead = ("a GPU", "`device: cpu`") if gpus == 1 else (f"{gpus} GPUs", "`gpus: 1`")
        key_of = "device" if gpus == 1 else "gpus"
        return f"{key_of}: no node of {where} has {lacks}; {named}set {instead}"
    cpus, wanted = max(node.cpus for node in able), tasks * job["cpus_per_task"]
    if wanted > cpus:
        return (
            f"slurm.cpus: {wanted} CPUs are more than a node of {where} has; "
            f"set at most {cpus}, or null"
        )
    able = [node for node in able if node.cpus >= wanted]
    megabytes = max(node.megabytes for node in able)
    if job["mem_mb"] > megabytes:
        return (
            f"{key}: no node of {where} has the {job['mem_mb']} MB of memory that a job asks for, "
            f"but at most {megabytes} MB; name a partition with larger nodes"
        )
    able = [node for node in able if node.megabytes >= job["mem_mb"]]
    most = max(Counter(node.partition for node in able).values())
    if nodes_wanted > most:
        return (
            f"slurm.nodes: {where} has fewer than {nodes_wanted} nodes that can run a training "
            f"job; set at most {most}"
        )
    hours = max(node.hours for node in able)
    if job["runtime"] > 60 * hours:
        return (
            f"slurm.hours: {job['runtime'] / 60:g} hours are more than {where} allows; "
            f"set at most {hours:g}: a job that reaches its wall time is resumed"
        )
    return None


def describe_job(name: str, cluster: Sequence[Node], job: Mapping[str, Any]) -> str:
    """A line for a terminal: where jobs of a kind run, and what each asks for."""
    found = sorted({node.partition for node in nodes_of(cluster, job["slurm_partition"])})
    partition = ", ".join(found) or "unknown"
    nodes = job.get("nodes") or 1
    several = f"{nodes} nodes with " if nodes > 1 else ""
    gpus = f"{job['gpu'] // nodes} GPU, " if job["gpu"] else ""
    cpus = job["cpus_per_task"] * (job.get("tasks") or 1) // nodes
    return (
        f"  {name:10} jobs in partition {partition}: {several}{gpus}"
        f"{counted(cpus, 'CPU')}, {job['mem_mb']:,} MB, {counted(job['runtime'] / 60, 'hour')} each"
    )
