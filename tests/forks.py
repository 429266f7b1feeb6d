"""Processes that start fast: forks of one process that has made the slow imports.

All that a start depends on is the fork's own: folder, environment, `sys.path`, input and output.
"""

import atexit
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any


def run(script: str, **request: Any) -> subprocess.CompletedProcess:
    """Let a fork of `script`, which calls `serve`, answer the request, with nothing to read."""
    with (
        tempfile.NamedTemporaryFile(encoding="utf-8", mode="r") as out,
        tempfile.NamedTemporaryFile(encoding="utf-8", mode="r") as err,
    ):
        process = server(script)
        line = json.dumps({"output": [out.name, err.name], "request": request})
        print(line, file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess(request, status, out.read(), err.read())


@functools.cache
def server(script: str) -> subprocess.Popen:
    """The process that forks, one for each process of pytest."""
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)  # its input ends, and so does it
    return process


def serve(answer: Callable[..., None]) -> None:
    """Fork for each request on standard input. `answer` may end the fork."""
    gc.freeze()  # or each fork would go through what was imported at its end, and copy its pages
    for line in sys.stdin:
        content = json.loads(line)
        child = os.fork()
        if child == 0:
            for number, path in enumerate([os.devnull, *content["output"]]):
                os.dup2(os.open(path, os.O_RDWR), number)
            answer(**content["request"])
            sys.exit()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def move(folder: str, environment: dict[str, str]) -> None:
    """Go to the folder, as the first place to import from, with this environment."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
