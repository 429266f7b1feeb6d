"""What a job of each rule asks of a Slurm cluster: for the rules, and for `plan --slurm`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nanoeuler.config.settings import Slurm
from nanoeuler.config.stages import BY_NAME
from nanoeuler.corpus.contamination import MOST_CELLS
from nanoeuler.corpus.sources.registry import NAMED, STEPS
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import state_bytes
from nanoeuler.workflow.cluster import USUAL_CPUS, Node, usual_cpus
from nanoeuler.workflow.machine import job_gpus, training_gpus

TEXT_MEGABYTES = {
    **dict.fromkeys(("learn_bpe", "write_group", "tokenize_group", "tokenize"), 3000),
    "index": 4000,
    "write_report": 1000,
}
"""Memory of jobs that only read and write text."""
MERGE_MEGABYTES = 2500
"""Memory of a job that compares all documents, of however many (near_duplicates.py, survey.py)."""
HELD_OUT_MEMORY = 1
"""Bytes of memory for each byte of held-out text, up to `MOST_CELLS`: the filter of its runs of
words (contamination.py)."""


def asked(config: Mapping[str, Any], cluster: Sequence[Node] | None, rule: str) -> dict[str, Any]:
    """The resources that a job of `rule` asks for; `cluster` as for `cluster_resources`."""
    if rule in BY_NAME:
        gpus, nodes = training_gpus(config), config["slurm"]["nodes"]
        megabytes = training_megabytes(config, gpus)
    elif rule in ("check_gradients", "evaluate_model"):
        gpus, nodes = job_gpus(config["device"]), 1
        megabytes = training_megabytes(config)
    elif rule in STEPS:
        megabytes, alone = STEPS[rule].megabytes, {"gpu": 0, "cpus_per_task": 1}
        return cluster_resources(config, cluster) | alone | {"mem_mb": megabytes}
    else:
        gpus, nodes = 0, 1
        megabytes = TEXT_MEGABYTES.get(rule) or cleaning_megabytes(config)
    return cluster_resources(config, cluster, gpus, nodes) | {
        "gpu": nodes * gpus,
        "mem_mb": megabytes,
    }


def is_local(config: Mapping[str, Any], rule: str) -> bool:
    """Whether a rule runs where Snakemake runs: it does little work, or needs the network."""
    return rule in STEPS and not (STEPS[rule].heavy and config["slurm"]["network"])


def training_megabytes(config: Mapping[str, Any], gpus: int = 1) -> int:
    """Memory that a job which runs the model asks for.

    It holds the libraries, for each GPU once, the training state, and as much again for
    activations.
    """
    state = state_bytes(ModelConfig.from_dict(config["model"]), AdamW)
    return 1500 * max(1, gpus) + 4 * state // 2**20


def cleaning_megabytes(config: Mapping[str, Any]) -> int:
    """Memory that a job asks for which compares all documents: the share held out decides.

    It is at most 6,596, at any size.
    """
    taken = sum(source.most_bytes(config) * len(source.items(config)) for source in NAMED)
    held_out = config["corpus"]["validation_share"] * taken
    of_filter = min(int(HELD_OUT_MEMORY * held_out), 8 * MOST_CELLS)
    return MERGE_MEGABYTES + of_filter // 2**20


def cluster_resources(
    config: Mapping[str, Any], cluster: Sequence[Node] | None, gpus: int = 0, nodes: int = 1
) -> dict[str, Any]:
    """The resources that a job asks of a Slurm cluster, with `gpus` on each of its nodes.

    A job of several nodes has a task for each GPU, or for each node without GPUs. `cluster` is None
    in the job itself, which then has what it was given. Snakemake leaves out values that are None,
    and executors other than Slurm ignore all of them.
    """
    slurm = Slurm.read(config["slurm"])
    partition = slurm.partition if gpus else slurm.cpu_partition
    if slurm.cpus is not None:
        cpus = slurm.cpus
    elif cluster is not None:
        cpus = usual_cpus(cluster, partition)
    else:
        cpus = int(os.environ.get("SLURM_CPUS_PER_TASK", USUAL_CPUS))
    resources = {
        "slurm_account": slurm.account,
        "slurm_partition": partition,
        "runtime": max(1, round(60 * slurm.hours)),
        "cpus_per_task": cpus,
        "nodes": 1 if gpus > 1 else None,  # or Slurm could find the GPUs on several
    }
    if nodes == 1:
        return resources
    tasks = max(1, gpus)
    return resources | {
        "cpus_per_task": max(1, cpus // tasks),
        "nodes": nodes,
        "tasks": nodes * tasks,
        "tasks_per_gpu": 1 if gpus else None,  # or the executor would ask for all tasks on each
        "mpi": "srun",  # the executor leaves it to the job's command to start the tasks
    }


def srun(resources: Any, on_cluster: bool) -> str:
    """Prefix of a job's command: empty, or `srun` for several tasks."""
    if not (on_cluster and resources.get("mpi")):
        return ""
    return (
        f"srun --nodes={resources.nodes} --ntasks={resources.tasks}"
        f" --cpus-per-task={resources.cpus_per_task} --kill-on-bad-exit=1 "
    )


def task_gpus(resources: Any, on_cluster: bool) -> int:
    """GPUs that each process of a job is told to take: all, unless `srun` starts one for each."""
    return min(1, resources.gpu) if srun(resources, on_cluster) else resources.gpu
