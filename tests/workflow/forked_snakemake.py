"""Snakemake processes that start fast: forks of one process that has imported Snakemake.

Importing it takes most of the time of a dry run. All that a start depends on is the fork's own:
folder, environment, `sys.path`, input and output. This project's modules are not imported before.
"""

import atexit
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.waiting import CEILING


def run(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess:
    """`python -m snakemake` in `folder`, with nothing to read."""
    with (
        tempfile.NamedTemporaryFile(encoding="utf-8", mode="r") as out,
        tempfile.NamedTemporaryFile(encoding="utf-8", mode="r") as err,
    ):
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "output": [out.name, err.name],
        }
        process = server()
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


@functools.cache
def server() -> subprocess.Popen:
    """The process that forks, one for each process of pytest."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)  # its input ends, and so does it
    return process


def serve() -> None:
    import smart_open  # noqa: F401 - by Snakemake's first look at a Snakefile
    import snakemake.cli

    snakemake.cli.get_argument_parser()  # imports the plugins
    gc.freeze()  # or each fork would go through what was imported at its end, and copy its pages
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become_snakemake(**request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become_snakemake(
    arguments: list[str], folder: str, environment: dict[str, str], output: list[str]
) -> None:
    import snakemake.cli

    for number, path in enumerate([os.devnull, *output]):
        os.dup2(os.open(path, os.O_RDWR), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [snakemake.__file__, *arguments]
    sys.path[0] = folder
    signal.alarm(int(CEILING))
    snakemake.cli.main()


if __name__ == "__main__":
    serve()
