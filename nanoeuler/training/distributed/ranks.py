"""The processes that are the ranks of a training stage.

Rank 0 is the process that was asked to train. It starts the others on its host, with the command
that it was given, their number in the environment and one end of a pair of sockets, unless `srun`
has started all of them (slurm_tasks.py). They end when it ends, whatever ends it. When one of them
ends too early, or is stopped for long, it ends the others and itself.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from nanoeuler import log
from nanoeuler.backend.ops import Backend
from nanoeuler.errors import UserError
from nanoeuler.system.machine import threads_allowed
from nanoeuler.training.distributed import slurm_tasks
from nanoeuler.training.distributed.group import ALONE, Group, HostGroup, Lost, stop_all
from nanoeuler.training.stopping import SIGNALS

PR_SET_PDEATHSIG = 1  # of Linux: a signal for this process when its parent ends
RANK, RANKS, LEADER = "NANOEULER_RANK", "NANOEULER_RANKS", "NANOEULER_LEADER"
POLL_SECONDS = 0.2
STOPPED_SECONDS = 15.0
"""How long a rank may be stopped (SIGSTOP) while rank 0 is not."""
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
        except Lost:  # rank 0 has said why, or was killed
            os._exit(1)  # the interpreter's end would wait for sums that never arrive
        except UserError as error:
            told = follower and follower.ends_within(MISTAKE_SECONDS)  # by rank 0
            if not told:
                print(f"error  rank {own_rank()}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
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
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # rank 0 saves, and ends us
    log.silence()
    group = slurm_tasks.follow(folder) if slurm_tasks.task() else follow_parent()
    group.heed()
    return group


def follow_parent() -> HostGroup:
    if sys.platform == "linux":  # also where a call into a library never returns
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    leader = Connection(int(os.environ[LEADER]))
    return HostGroup(own_rank(), int(os.environ[RANKS]), [leader])


def connected(group: Group, engine: Backend) -> Group:
    """The group, with the fastest way there is for the arrays of an engine."""
    if engine.device is None or not isinstance(group, HostGroup):
        return group
    from nanoeuler.backend.cuda.engine import CudaBackend
    from nanoeuler.training.distributed.nccl import NcclGroup

    assert isinstance(engine, CudaBackend)
    return NcclGroup(group, engine)


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
        for rank in range(1, size):
            start(rank, size, children, peers)
        threading.Thread(target=watch, args=(children, ended), daemon=True).start()
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


def start(
    rank: int, size: int, children: list[subprocess.Popen[bytes]], peers: list[Connection]
) -> None:
    """Start a rank, and add it to `children` and the connection to it to `peers`."""
    own, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        named = {RANK: str(rank), RANKS: str(size), LEADER: str(number)}
        children.append(
            subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env=os.environ | named,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
            )
        )
    peers.append(Connection(own.detach()))


def watch(children: list[subprocess.Popen[bytes]], ended: threading.Event) -> None:
    """End this process, and the other ranks, when one of them ends before its time, or is stopped
    while this one is not."""
    stopped = [0.0] * len(children)
    while not ended.wait(POLL_SECONDS):
        for index, child in enumerate(children):
            status = child.poll()
            # counted by looks, of which there are none while this process is stopped, too
            stopped[index] = stopped[index] + POLL_SECONDS if is_stopped(child) else 0.0
            if (status is None and stopped[index] < STOPPED_SECONDS) or ended.is_set():
                continue
            for other in children:
                other.kill()
            stop_all(describe(index + 1, len(children) + 1, status))


def is_stopped(child: subprocess.Popen[bytes]) -> bool:
    """Whether a child that has not ended was stopped, by SIGSTOP or a debugger."""
    if child.returncode is not None:
        return False
    try:
        found = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except (AttributeError, ChildProcessError):  # another system, or it has just ended
        return False
    return found is not None


def describe(rank: int, size: int, status: int | None) -> str:
    """How a rank ended; None for one that was stopped."""
    if status is None:
        return f"rank {rank} of {size} was suspended (SIGSTOP) for {STOPPED_SECONDS:.0f} seconds"
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
