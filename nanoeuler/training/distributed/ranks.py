"""The processes that are the ranks of a training stage.

Rank 0 is the process that was asked to train. It starts the others on its host, with the command
that it was given and their number in the environment, unless `srun` has started all of them
(slurm_tasks.py). They end when it ends, whatever ends it. When one of them ends too early, it stops
the others and itself.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from nanoeuler import log
from nanoeuler.cores import threads_allowed
from nanoeuler.errors import UserError
from nanoeuler.training.distributed import slurm_tasks
from nanoeuler.training.distributed.group import ALONE, Group, HostGroup, Lost, losing

RANK, RANKS, LEADER, KEY = (
    f"NANOEULER_{name}" for name in ("RANK", "RANKS", "LEADER", "LEADER_KEY")
)
POLL_SECONDS = 0.2
MISTAKE_SECONDS = 1.0
"""How much later rank 0 may find a mistake that another rank has found, too."""
PATIENCE_SECONDS = 20.0
"""How long ranks may take to end by themselves."""


def own_rank() -> int:
    """The rank of this process: 0 unless another one or `srun` started it as a further one."""
    own = slurm_tasks.task()
    return own.rank if own else int(os.environ.get(RANK, "0"))


@contextlib.contextmanager
def ranks(size: int, folder: Path) -> Iterator[Group]:
    """The group of this process: as rank 0 of `size`, or as the rank that it was started for.

    `folder` is the stage's, which the hosts of all ranks see.
    """
    if own_rank():
        follower: HostGroup | None = None
        try:
            follower = follow(folder)
            yield follower
        except Lost:
            raise SystemExit(1) from None  # rank 0 has said why, or was killed
        except UserError as error:
            told = follower and follower.ends_within(MISTAKE_SECONDS)  # by rank 0
            if not told:
                print(f"error  rank {own_rank()}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        raise SystemExit(0)  # what comes behind a stage is for rank 0
    if slurm_tasks.task():
        with slurm_tasks.lead(size, folder) as group:
            yield group
        return
    cores = threads_allowed()
    if not 1 <= size <= 4 * cores:
        raise UserError(
            f"--ranks {size}: give 1 to {4 * cores} on this machine, where they share "
            f"{log.counted(cores, 'core')}"
        )
    if size == 1:
        yield ALONE
        return
    with lead(size) as group:
        yield group


def follow(folder: Path) -> HostGroup:
    """Connect to rank 0, and wait until it has found nothing wrong with the inputs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 saves, and ends us
    log.silence()
    group = slurm_tasks.follow(folder) if slurm_tasks.task() else follow_parent()
    group.heed()
    return group


def follow_parent() -> HostGroup:
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with losing():
        key = bytes.fromhex(os.environ[KEY])
        leader = Client(address(os.environ[LEADER]), "AF_UNIX", authkey=key)
        leader.send(own_rank())
    return HostGroup(own_rank(), int(os.environ[RANKS]), [leader])


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


@contextlib.contextmanager
def lead(size: int) -> Iterator[Group]:
    """Start the other ranks, with an equal share of the cores each; they have ended when the
    context has."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, threads_allowed() // size))
    children: list[subprocess.Popen[bytes]] = []
    peers: list[Connection] = []
    ended = threading.Event()
    try:
        peers += meet(size, children, ended)
        group = HostGroup(0, size, peers)
        yield group
        group.tell("end")
    except Lost:
        time.sleep(PATIENCE_SECONDS)  # `watch` says who, and ends this process
        raise
    finally:
        ended.set()
        for peer in peers:
            peer.close()
        end(children)


def meet(
    size: int, children: list[subprocess.Popen[bytes]], ended: threading.Event
) -> list[Connection]:
    """Start the other ranks, as `children`; returns the connections to them, in order."""
    key = secrets.token_bytes(32)
    found: dict[int, Connection] = {}
    name = f"nanoeuler-{secrets.token_hex(16)}"
    with Listener(address(name), "AF_UNIX", backlog=size, authkey=key) as listener:
        environment = os.environ | {RANKS: str(size), LEADER: name, KEY: key.hex()}
        children += [start(rank, environment) for rank in range(1, size)]
        threading.Thread(target=watch, args=(children, ended), daemon=True).start()
        while len(found) < size - 1:
            peer = listener.accept()
            found[peer.recv()] = peer
    return [found[rank] for rank in sorted(found)]


def address(name: str) -> str:
    """Where rank 0 listens: on Linux no file, which a killed process would leave behind."""
    return f"\0{name}" if sys.platform == "linux" else f"{tempfile.gettempdir()}/{name}"


def start(rank: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, *sys.orig_argv[1:]]
    return subprocess.Popen(command, env=environment | {RANK: str(rank)}, stdin=subprocess.DEVNULL)


def watch(children: list[subprocess.Popen[bytes]], ended: threading.Event) -> None:
    """End this process, and the other ranks, when one of them ends before its time."""
    while not ended.wait(POLL_SECONDS):
        for rank, child in enumerate(children, start=1):
            status = child.poll()
            if status is not None and not ended.is_set():
                log.line(
                    "error",
                    f"{describe(rank, len(children) + 1, status)}; the other ranks "
                    "are stopped; run the same command again, which goes on from the last "
                    "checkpoint if there is one",
                )
                for other in children:
                    other.kill()
                os._exit(1)


def describe(rank: int, size: int, status: int) -> str:
    """How a rank ended."""
    if status < 0:
        return f"rank {rank} of {size} was killed by {signal.Signals(-status).name}"
    return f"rank {rank} of {size} ended with status {status}, for the reason above"


def end(children: list[subprocess.Popen[bytes]]) -> None:
    """Let the other ranks end; kill those that do not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
