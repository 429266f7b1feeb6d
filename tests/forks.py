"""Python processes that start fast: forks of a process that has made the slow imports.

    done = run(["-m", "snakemake", "-n"], folder, environment)

is `python -m snakemake -n`. Imports take most of the time of a dry run, and half of a run on tiny
data. All that a start depends on is the fork's own: folder, environment, `sys.path`, input and
output. Its parent is a fork, too, which tells how it ended.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from tests.waiting import CEILING

ROOT = Path(__file__).parents[1]
NUMBER = struct.Struct("i")
"""What a fork's parent sends: its process id, and in the end its exit status."""
ENDED: list[int] = []
"""In a fork, the status that it has ended with."""


def import_others() -> None:
    """What programs and Snakemake need, which import this project's modules from their folder."""
    import numba  # noqa: F401
    import smart_open  # noqa: F401 - by Snakemake's first look at a Snakefile
    import snakemake.cli

    snakemake.cli.get_argument_parser()  # imports the plugins


def import_trainers() -> None:
    import nanoeuler.cli
    import nanoeuler.lessons.candidate
    import nanoeuler.tokenizer.encoder  # with Numba, when records are encoded
    import nanoeuler.training.distributed.ranks
    import nanoeuler.training.distributed.slurm_tasks
    import nanoeuler.training.stages.dpo
    import nanoeuler.training.stages.pretrain
    import nanoeuler.training.stages.sft  # noqa: F401


class Process:
    """`python` with these arguments, by what the tests use of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: TextIO = sys.__stdout__,
        errors: TextIO | None = None,
    ):
        self.args = arguments
        self.returncode: int | None = None
        self.reports, theirs = socket.socketpair()
        writing = errors.fileno() if errors else None
        if writing is None:
            reading, writing = os.pipe()
            self.stderr = os.fdopen(reading, encoding="utf-8")
        given = [theirs.fileno(), output.fileno(), writing]
        request = json.dumps([arguments, str(folder), dict(environment)])
        imports = import_trainers if arguments[1] == "nanoeuler" else import_others
        socket.send_fds(server(imports), [f"{request}\n".encode()], given)
        theirs.close()
        if not errors:
            os.close(writing)
        self.pid = self.reported()

    def reported(self) -> int:
        return NUMBER.unpack(self.reports.recv(NUMBER.size, socket.MSG_WAITALL))[0]

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
            self.returncode = self.reported()
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


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess:
    """Like `subprocess.run` with both outputs as text, and nothing to read."""
    files = functools.partial(tempfile.TemporaryFile, "w+", encoding="utf-8")
    with files() as output, files() as errors:
        process = Process(arguments, folder, environment, output, errors)
        try:
            process.wait(CEILING)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        said = output.read(), errors.read()
    return subprocess.CompletedProcess(arguments, process.returncode, *said)


@functools.cache
def server(imports: Callable[[], None]) -> socket.socket:
    """Where the process that forks, one for each process of pytest, listens. It ends with it."""
    ours, theirs = socket.socketpair()
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, imports.__name__, str(theirs.fileno())]
    subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    return ours


def serve(requests: socket.socket) -> None:
    gc.freeze()  # or each fork would go through what was imported at its end, and copy its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that report
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return
        while not request.endswith(b"\n"):
            request += requests.recv(1 << 20)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            report(*descriptors, json.loads(request))
            return
        for descriptor in descriptors:
            os.close(descriptor)


def report(
    reports: int, output: int, errors: int, start: tuple[list[str], str, dict[str, str]]
) -> None:
    child = os.fork()
    if child == 0:
        for number, path in enumerate([os.open(os.devnull, os.O_RDWR), output, errors]):
            os.dup2(path, number)
        os.closerange(3, 64)  # of the process that forks
        try:
            become(*start)
            ENDED.append(0)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                ENDED.append(end.code or 0)
            raise
        return
    os.close(errors)
    os.write(reports, NUMBER.pack(child))
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):
        os.write(reports, NUMBER.pack(os.waitstatus_to_exitcode(status)))


def leave() -> None:
    """End a fork that has ended well by itself: to take apart what it was given takes 0.1 s."""
    if ENDED:
        with suppress(OSError, ValueError):  # nobody reads
            sys.stdout.flush()
        os._exit(ENDED[0])


def become(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    import numba

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    numba.config.reload_config()  # it has read the environment of the process that forks
    sys.path[0] = folder
    option, what, *rest = arguments
    sys.argv = [option, *rest]
    sys.orig_argv = [sys.executable, *arguments]  # so other ranks are started
    if option == "-c":
        exec(what, {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    atexit.register(leave)  # first, to be called last
    globals()[sys.argv[1]]()
    serve(socket.socket(fileno=int(sys.argv[2])))
