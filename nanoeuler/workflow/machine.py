"""The machine that a workflow runs on: its GPUs, its memory, and the environment of the jobs."""

import os
import sys
from collections.abc import Container, Mapping
from typing import Any

from nanoeuler.backend import webgpu_problem
from nanoeuler.system.machine import memory
from nanoeuler.system.processes import STARTER, output_of, own_identity

ALL_CORES = 64
"""More cores than most machines have: Snakemake lowers it to the number that it was given."""
GPU_JOB_CORES = 4
"""Cores of a job on a GPU: enough to make its rows, and few, so that several jobs run at once."""

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
    listed = output_of(["nvidia-smi", "-L"], 20) or ""
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",")]
    return min(found, sum(name not in ("", "-1") for name in names))


def training_gpus(config: Mapping[str, Any]) -> int:
    """GPUs of a job that trains, on each of its nodes."""
    return job_gpus(config["device"]) * config["gpus"]


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
