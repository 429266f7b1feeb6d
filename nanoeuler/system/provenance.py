"""Describe where a result came from: the code, the software and the machine.

Every output folder carries `collect()`, so that a number found later can be traced to its origin.
It takes a few milliseconds and needs neither a git checkout nor the network.
"""

import functools
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from nanoeuler.system.machine import usable_cores
from nanoeuler.system.processes import output_of
from nanoeuler.version import __version__

PACKAGES = (
    "numpy",
    "safetensors",
    "duckdb",
    "snakemake",
    "numba",
    "mkl",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "wgpu",
)
"""Distributions whose version can change a result; those that are not installed are left out."""


def collect(device: str | None = None) -> dict[str, Any]:
    """Describe the code, the software and the machine at this moment, as plain JSON values.

    `device` is the name of the device that computed, if not the CPU (a GPU's model name, say).
    """
    return {
        "nanoeuler": __version__,
        **checkout(Path(__file__).resolve().parents[2]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": package_versions(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "device": device or cpu_name(),
    }


@functools.cache
def checkout(root: Path) -> dict[str, Any]:
    """Return `commit` and `dirty` (are tracked files changed?) of the git checkout at `root`.

    Both are None where there is none.
    """
    if not (root / ".git").exists():  # a worktree's .git is a file
        return {"commit": None, "dirty": None}
    commit = git(root, "rev-parse", "HEAD")
    changes = git(root, "status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command in `root`, or None where git is missing or fails."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    # `status` must not touch the index of a checkout that somebody works in
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    printed = output_of(["git", "-C", str(root), *arguments], 10, env=environment)
    return None if printed is None else printed.strip()


@functools.cache
def package_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def cpu_name() -> str:
    """Return the processor's model name if the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
