"""Trainers that start fast: forks of one process that has imported what they import.

That takes half the time of a run on tiny data. All that a start depends on is the fork's own:
folder, environment, input and output. Its parent is a fork, too, which tells how it ended.
"""

import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]


class Process:
    """`python -m nanoeuler` with these arguments, by what the tests use of `subprocess.Popen`."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]):
        self.args = arguments
        self.returncode: int | None = None
        self.reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        self.stderr = os.fdopen(reading, encoding="utf-8")
        request = json.dumps([arguments, os.getcwd(), dict(environment)]).encode()
        socket.send_fds(server(), [request], [theirs.fileno(), writing])
        theirs.close()
        os.close(writing)
        self.pid = int(self.reports.recv(64))

    def poll(self) -> int | None:
        with suppress(TimeoutError, BlockingIOError):
            self.end_within(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self.end_within(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None

    def end_within(self, seconds: float | None) -> int:
        if self.returncode is None:
            self.reports.settimeout(seconds)
            self.returncode = int(self.reports.recv(64))
        return self.returncode

    def communicate(self, timeout: float = CEILING) -> tuple[None, str]:
        """What it and its own children say until the last of them ends; killed after `timeout`."""
        killing = threading.Timer(timeout, self.kill)
        killing.start()
        said = self.stderr.read()
        self.stderr.close()
        self.wait()
        killing.cancel()
        return None, said

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def server() -> socket.socket:
    """Where the process that forks, one for each process of pytest, listens. It ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    return ours


def serve(requests: socket.socket) -> None:
    from numba.core.registry import cpu_target

    import nanoeuler.cli
    import nanoeuler.lessons.candidate
    import nanoeuler.tokenizer.encoder  # with Numba, when records are encoded
    import nanoeuler.training.distributed.ranks
    import nanoeuler.training.distributed.slurm_tasks
    import nanoeuler.training.dpo
    import nanoeuler.training.pretrain
    import nanoeuler.training.sft  # noqa: F401

    cpu_target.typing_context.refresh()  # what Numba imports when it loads the first function
    cpu_target.target_context.refresh()
    gc.freeze()  # or each fork would go through what was imported at its end, and copy its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that report
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not request:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            report(*descriptors, *json.loads(request))
            return
        for descriptor in descriptors:
            os.close(descriptor)


def report(
    reports: int, errors: int, arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    child = os.fork()
    if child == 0:
        become_trainer(errors, arguments, folder, environment)
    os.close(errors)
    os.write(reports, str(child).encode())
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):
        os.write(reports, str(os.waitstatus_to_exitcode(status)).encode())


def become_trainer(
    errors: int, arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    import nanoeuler.__main__
    from nanoeuler.cli import main

    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(errors, 2)
    os.closerange(3, 64)  # of the process that forks
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [nanoeuler.__main__.__file__, *arguments]
    sys.orig_argv = [sys.executable, "-m", "nanoeuler", *arguments]  # so other ranks are started
    sys.path[0] = folder
    sys.exit(main())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
