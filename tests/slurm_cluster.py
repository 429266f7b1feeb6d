"""A real Slurm, of this machine alone and without an accounting database, while a test needs it.

It needs slurmctld, slurmd and munged (Debian: `apt install slurm-wlm munge`).
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import CEILING

SCRIPTS = Path(__file__).parent / "workflow" / "slurm"


@contextmanager
def slurm_cluster(nodes: int = 1) -> Iterator[dict[str, str]]:
    """The environment of the cluster's login node; afterwards the cluster is gone."""
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
    for daemon in ("slurmctld", "slurmd", "munged"):
        if shutil.which(daemon, path=path) is None:
            pytest.skip(f"{daemon} is not installed; on Debian: apt install slurm-wlm munge")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        started = subprocess.run(
            [SCRIPTS / "start_cluster.sh", folder],
            env=os.environ | {"NODES": str(nodes)},
            capture_output=True,
            text=True,
            timeout=CEILING,
        )
        assert started.returncode == 0, started.stderr
        yield {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
    finally:
        subprocess.run([SCRIPTS / "stop_cluster.sh", folder], check=True, timeout=CEILING)
        shutil.rmtree(folder)


def slurm(cluster: dict[str, str], *command: str) -> str:
    """What a command of Slurm prints."""
    return subprocess.run(
        command, env=os.environ | cluster, check=True, capture_output=True, text=True, timeout=60
    ).stdout
