"""The machine that a workflow runs on: its GPUs, its memory, and the environment of the jobs."""

import os
import subprocess
import sys
from collections.abc import Container, Mapping
from typing import Any

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import state_bytes

ALL_CORES = 64
"""More than most machines have: Snakemake scales it down to the cores that it was given."""
GPU_JOB_CORES = 4
"""Of a job that computes on a GPU: enough to make its rows, and few, so that jobs on several GPUs run side by side."""


def limits(config: Mapping[str, Any], given: Container[str] = ()) -> dict[str, int]:
    """What the jobs that run at one time may use together: GPUs and memory of this machine, and one connection to a Gutenberg mirror.

    Those in `given` (a profile's `resources`, or `--resources gpu=0`) are left as they are.
    """
    found = {
        "gpu": gpus_at_hand(config["device"]),
        "mem_mb": memory_megabytes(),
        "mirror_connections": 1,
    }
    return {name: limit for name, limit in found.items() if name not in given}


def model_threads(gpus: int) -> int:
    """Cores that a job which runs the model takes, where `gpus` may be used together: all, unless a GPU does the work."""
    return GPU_JOB_CORES if gpus else ALL_CORES


def gpus_at_hand(device: str = "auto") -> int:
    """Number of GPUs that a job may use: none where `device` forbids them or the driver's tool does not answer."""
    if device in ("cpu", "reference"):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return (
        found
        if visible is None
        else min(
            found, sum(bool(name.strip()) and name.strip() != "-1" for name in visible.split(","))
        )
    )


def training_megabytes(config: Mapping[str, Any]) -> int:
    """Memory that a job which runs the model asks for: the libraries, and room for the training state and as much again for activations."""
    return 1500 + 4 * state_bytes(ModelConfig.from_dict(config["model"])) // 2**20


def memory_megabytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def job_environment(checkout: str) -> dict[str, str]:
    """Environment that makes a job's `python -m nanoeuler` this interpreter and this checkout, whatever else is installed or active."""
    environment = os.environ
    paths = [os.path.dirname(sys.executable), *environment.get("PATH", "").split(os.pathsep)]
    packages = [checkout, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages)),
    }


def cluster_resources(config: Mapping[str, Any], gpu: bool = False) -> dict[str, Any]:
    """What a job asks of a Slurm cluster; Snakemake leaves out what is None, and other executors ignore all of it."""
    slurm = config["slurm"]
    return {
        "slurm_account": slurm["account"],
        "slurm_partition": slurm["partition"] if gpu else slurm["cpu_partition"],
        "runtime": round(60 * slurm["hours"]),
        "cpus_per_task": slurm["cpus"],
    }
