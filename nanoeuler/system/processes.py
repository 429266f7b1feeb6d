"""Tell a process from all others, and notice the end of the one that started this one.

`kill -9` of a program lets it say nothing to those that it has started. So each Snakemake names
itself in the environment of its jobs, and `nanoeuler run` in that of its Snakemake; who is started
so watches the starter. A shell in between, and a killed Snakemake inside, change nothing in that.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STARTER = "NANOEULER_STARTER"
"""The environment variable with the identity of the process to end with."""
LEFT_ALONE = signal.SIGUSR1
"""The signal at which a stage ends whose starter is gone; no other one sends it."""
POLL_SECONDS = 0.5


def output_of(
    command: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
) -> str | None:
    """What a command prints; None where it is missing, fails, or takes longer than that."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=True, env=env
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def own_identity() -> str:
    """An identity of this process among all times, machines and containers."""
    return identity(os.getpid())


def identity(pid: int) -> str:
    return " ".join(map(str, (boot_id(), process_namespace(), pid, process_start(pid))))


def end_with_starter(action: Callable[[], object]) -> None:
    """Call `action` in a thread when the process that STARTER names has ended.

    Without that name there is nothing to do, nor where it is one of another machine or container,
    of which nothing can be seen here: jobs of a cluster outlive the login node.
    """
    starter = os.environ.get(STARTER, "").split(" ")
    if len(starter) != 4 or starter[:2] != [str(boot_id()), str(process_namespace())]:
        return
    pid = int(starter[2])

    def watch() -> None:
        while identity(pid).split(" ") == starter:
            time.sleep(POLL_SECONDS)
        action()

    threading.Thread(target=watch, daemon=True).start()


def boot_id() -> str | None:
    """An identity of this boot of the machine, or None."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_namespace() -> str | None:
    """An identity of this container's process numbers."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def process_start(pid: int) -> str | None:
    """When process `pid` started, which tells it from an earlier process of that number.

    None when there is no such process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:  # a system without /proc
        os.kill(pid, 0)
        return "alive"
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
