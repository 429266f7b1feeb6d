"""Ranks that `srun` has started, one for each of its tasks, on any number of hosts.

Rank 0 listens, and writes where into the folder of the stage, which all hosts see. Each rank
connects twice: the second connection carries a byte now and then, and ends with the rank. Whoever
else connects is left to a thread, so that nobody waits for a stranger.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_text
from nanoeuler.storage.temporary import temporary_beside
from nanoeuler.training.distributed.group import Group, HostGroup, Lost, losing, stop_all

POLL_SECONDS = 0.2
MEETING_SECONDS = 300.0
"""How long ranks wait for each other: hosts may be busy, and a shared folder slow."""
ENDING_SECONDS = 20.0
HANDSHAKE_SECONDS = 10.0
"""How long one message of a connection's first ones may take."""
BEAT_SECONDS, SILENCE_SECONDS = 5.0, 120.0
"""How often a rank says that it lives, and how long it may be silent: compiling may hold it up."""


class Task(NamedTuple):
    rank: int
    size: int


def task() -> Task | None:
    """This process among those that one `srun` has started; None where it has started one."""
    size = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return Task(int(os.environ["SLURM_PROCID"]), size) if size > 1 else None


def meeting_file(folder: Path) -> Path:
    """Where rank 0 says where it listens: a file for each start of a job's step."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return folder / f".ranks-{'-'.join(os.environ.get(name, '0') for name in names)}.json"


@contextlib.contextmanager
def lead(size: int, folder: Path) -> Iterator[Group]:
    """Meet the other ranks, and end with them."""
    ended = threading.Event()
    calls, lives = meet(size, meeting_file(folder))
    watchers = [
        threading.Thread(target=watch, args=(life, name, ended), daemon=True)
        for name, life in lives.items()
    ]
    for watcher in watchers:
        watcher.start()
    group = HostGroup(0, size, calls)
    try:
        yield group
        group.tell("end")
    except Lost:
        time.sleep(ENDING_SECONDS)  # `watch` says who, and ends this process
        raise
    ended.set()
    deadline = time.monotonic() + ENDING_SECONDS
    for watcher in watchers:
        watcher.join(max(0.0, deadline - time.monotonic()))


def meet(size: int, file: Path) -> tuple[list[Connection], dict[str, Connection]]:
    """The connections to the other ranks, in order, and those that end with each."""
    key = secrets.token_bytes(32)
    found: dict[tuple[int, str], Connection] = {}
    hosts: dict[int, str] = {}

    def give_up() -> None:
        missing = sorted(set(range(1, size)) - hosts.keys())
        log.line(
            "error",
            f"ranks {', '.join(map(str, missing))} of {size} did not connect to "
            f"{socket.gethostname()} within {MEETING_SECONDS:.0f} seconds; see what they print, "
            f"and whether their hosts see {file.parent}",
        )
        os._exit(1)

    def admit(accepted: socket.socket) -> None:
        peer = Connection(accepted.detach())
        with contextlib.suppress(AuthenticationError, EOFError, OSError, ValueError):  # a stranger
            set_patience(peer, HANDSHAKE_SECONDS)
            deliver_challenge(peer, key)
            answer_challenge(peer, key)
            rank, kind, host = peer.recv()
            set_patience(peer, 0)
            send_at_once(peer)
            hosts[rank] = host
            found[rank, kind] = peer

    with socket.create_server(("", 0), backlog=2 * size) as listening:
        port = listening.getsockname()[1]
        write_privately(file, {"host": socket.gethostname(), "port": port, "key": key.hex()})
        listening.settimeout(POLL_SECONDS)
        deadline = time.monotonic() + MEETING_SECONDS
        while len(found) < 2 * (size - 1):
            if time.monotonic() > deadline:
                give_up()
            with contextlib.suppress(TimeoutError):
                accepted, _ = listening.accept()
                threading.Thread(target=admit, args=(accepted,), daemon=True).start()
        file.unlink()
    others = range(1, size)
    lives = {f"rank {rank} of {size} on {hosts[rank]}": found[rank, "life"] for rank in others}
    return [found[rank, "calls"] for rank in others], lives


def follow(folder: Path) -> HostGroup:
    """Connect to rank 0, as another rank."""
    own = task()
    assert own is not None
    file = meeting_file(folder)
    deadline = time.monotonic() + MEETING_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{file}: rank 0 has not written it within {MEETING_SECONDS:.0f} seconds; "
                "all hosts must see the folder"
            )
        time.sleep(0.1)
    where = json.loads(read_text(file))
    connections = []
    with losing():
        for kind in ("calls", "life"):
            address, key = (where["host"], where["port"]), bytes.fromhex(where["key"])
            connection = Client(address, "AF_INET", authkey=key)
            connection.send((own.rank, kind, socket.gethostname()))
            send_at_once(connection)
            connections.append(connection)
    calls, life = connections
    for work in (end_with, beat):
        threading.Thread(target=work, args=(life,), daemon=True).start()
    return HostGroup(own.rank, own.size, [calls])


def watch(life: Connection, name: str, ended: threading.Event) -> None:
    """On rank 0: end this process, and so all ranks, when the one called `name` ends too early or
    falls silent."""
    how = "has ended"
    with contextlib.suppress(EOFError, OSError):
        while life.poll(SILENCE_SECONDS):
            life.recv_bytes()
        how = f"has been silent for {SILENCE_SECONDS:.0f} seconds: it is suspended, or cut off"
    if not ended.is_set():
        stop_all(f"{name} {how}")


def beat(life: Connection) -> None:
    """On another rank: say now and then that it lives."""
    with contextlib.suppress(OSError):
        while True:
            life.send_bytes(b".")
            time.sleep(BEAT_SECONDS)


def end_with(life: Connection) -> None:
    """On another rank: end this process when rank 0 has ended."""
    with contextlib.suppress(EOFError, OSError):
        life.recv_bytes()
    os._exit(1)


def write_privately(file: Path, value: Any) -> None:
    """Write JSON that only this user can read; it appears whole."""
    with temporary_beside(file) as temporary:
        temporary.chmod(0o600)
        temporary.write_text(json.dumps(value))
        temporary.replace(file)


def send_at_once(connection: Connection) -> None:
    """Send small messages without waiting for more: a call is answered by nothing."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def set_patience(connection: Connection, seconds: float) -> None:
    """Let each read and write of a connection fail after so many seconds; 0: never."""
    limit = struct.pack("ll", int(seconds), 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
