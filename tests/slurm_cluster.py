"""A real Slurm, of this machine alone, while a test needs it.

It needs slurmctld, slurmd and munged (Debian: `apt install slurm-wlm munge`), and for an accounting
database slurmdbd and mariadbd (`apt install slurmdbd mariadb-server`).
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
DAEMONS = ("slurmctld", "slurmd", "munged")
ACCOUNTING_DAEMONS = ("slurmdbd", "mariadbd")
PROFILE = (
    *("--workflow-profile", "profiles/slurm"),
    *("--slurm-init-seconds-before-status-checks", "1"),
    *("--seconds-between-status-checks", "1"),
    *("--latency-wait", "2"),
)
"""Arguments of Snakemake, which looks at its jobs every second."""


@contextmanager
def slurm_cluster(
    *lines: str, nodes: int = 1, accounting: str = "none", network: str = "all"
) -> Iterator[dict[str, str]]:
    """The environment of the cluster's login node; afterwards the cluster is gone.

    `accounting` may be "slurmdbd"; with `network` "none" nodes reach the login node alone; `lines`
    are for slurm.conf.
    """
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
    daemons, packages = DAEMONS, "slurm-wlm munge"
    if accounting != "none":
        daemons, packages = DAEMONS + ACCOUNTING_DAEMONS, f"{packages} slurmdbd mariadb-server"
    for daemon in daemons:
        if shutil.which(daemon, path=path) is None:
            pytest.skip(f"{daemon} is not installed; on Debian: apt install {packages}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        started = subprocess.run(
            [SCRIPTS / "start_cluster.sh", folder, *lines],
            env=os.environ | {"NODES": str(nodes), "ACCOUNTING": accounting, "NETWORK": network},
            stderr=subprocess.PIPE,
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


def networks_can_be_made() -> bool:
    """Whether this user may make nodes without a network."""
    tools = all(map(shutil.which, ("ip", "nsenter", "unshare")))
    return (
        tools
        and subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL).returncode == 0
    )


def slurm(cluster: dict[str, str], *command: str) -> str:
    """What a command of Slurm prints."""
    return subprocess.run(
        command, env=os.environ | cluster, check=True, capture_output=True, text=True, timeout=60
    ).stdout
