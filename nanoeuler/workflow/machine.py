"""The machine that a workflow runs on: its GPUs, its memory, and the environment of the jobs."""

import os
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any

from nanoeuler.backend import webgpu_problem
from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Slurm
from nanoeuler.corpus.sources.registry import NAMED
from nanoeuler.model.config import ModelConfig
from nanoeuler.system.machine import memory
from nanoeuler.system.processes import STARTER, own_identity
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import state_bytes
from nanoeuler.workflow.cluster import USUAL_CPUS, Node, usual_cpus

ALL_CORES = 64
"""More cores than most machines have: Snakemake lowers it to the number that it was given."""
GPU_JOB_CORES = 4
"""Cores of a job on a GPU: enough to make its rows, and few, so that several jobs run at once."""

TEXT_MEGABYTES = 3000
INDEX_MEGABYTES = 4000
"""Memory of the largest job that only reads and writes text."""
MERGE_MEGABYTES = 2500
"""Memory of a job that compares all documents, of however many (near_duplicates.py, survey.py)."""
HELD_OUT_MEMORY = 12
"""Bytes of memory for each byte of held-out text, whose runs of words it has (contamination.py)."""
WITHOUT_GPU = ("cpu", "reference")
"""Devices on which no job asks for a GPU."""


def limits(config: Mapping[str, Any], given: Container[str] = ()) -> dict[str, int]:
    """The GPUs, memory and mirror connections that the jobs of one moment may use together.

    Limits in `given` (a profile's `resources`, or `--resources gpu=0`) are not set.
    """
    found = {
        "gpu": usable_gpus(config["device"]),
        "mem_mb": memory() // 2**20,
        "mirror_connections": 1,
    }
    return {name: limit for name, limit in found.items() if name not in given}


def model_threads(gpus: int) -> int:
    """Cores of a job that runs the model on `gpus`: all, unless a GPU computes."""
    return GPU_JOB_CORES * gpus if gpus else ALL_CORES


def job_gpus(device: str) -> int:
    """GPUs of a job that runs the model: none where `device` forbids them."""
    return 0 if device in WITHOUT_GPU else 1


def usable_gpus(device: str = "auto") -> int:
    """Number of GPUs that a job may use.

    There are none where `device` forbids them. NVIDIA's are those that the driver's tool lists; of
    others, which WebGPU reaches, jobs share one.
    """
    if device in WITHOUT_GPU:
        return 0
    if device == "webgpu":
        return 1
    nvidia = nvidia_gpus()
    return 1 if device == "auto" and not nvidia and not webgpu_problem() else nvidia


def nvidia_gpus() -> int:
    """GPUs that the driver's tool lists and CUDA_VISIBLE_DEVICES leaves."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",")]
    return min(found, sum(name not in ("", "-1") for name in names))


def training_gpus(config: Mapping[str, Any]) -> int:
    """GPUs of a job that trains, on each of its nodes."""
    return job_gpus(config["device"]) * config["gpus"]


def training_megabytes(config: Mapping[str, Any], gpus: int = 1) -> int:
    """Memory that a job which runs the model asks for.

    It holds the libraries, for each GPU once, the training state, and as much again for
    activations.
    """
    state = state_bytes(ModelConfig.from_dict(config["model"]), AdamW)
    return 1500 * max(1, gpus) + 4 * state // 2**20


def cleaning_megabytes(config: Mapping[str, Any]) -> int:
    """Memory that a job asks for which compares all documents: the share held out decides."""
    taken = sum(source.most_bytes(config) * len(source.items(config)) for source in NAMED)
    held_out = config["corpus"]["validation_share"] * taken
    return MERGE_MEGABYTES + int(HELD_OUT_MEMORY * held_out) // 2**20


def job_environment(checkout: str) -> dict[str, str]:
    """Environment in which a job's `python -m nanoeuler` is this interpreter and this checkout,
    and ends with this process."""
    environment = os.environ
    paths = [os.path.dirname(sys.executable), *environment.get("PATH", "").split(os.pathsep)]
    packages = [checkout, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages)),
        STARTER: own_identity(),
    }


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


def cluster_jobs(config: Mapping[str, Any], cluster: Sequence[Node]) -> dict[str, dict[str, Any]]:
    """The largest resources that jobs of each kind ask of a Slurm cluster."""
    gpus, nodes = training_gpus(config), config["slurm"]["nodes"]
    model = {"gpu": nodes * gpus, "mem_mb": training_megabytes(config, gpus)}
    merges = cleaning_megabytes(config) if Paths(config).groups else 0
    text = {"gpu": 0, "mem_mb": max(TEXT_MEGABYTES, merges)}
    return {
        "models": cluster_resources(config, cluster, gpus, nodes) | model,
        "text": cluster_resources(config, cluster) | text,
    }
