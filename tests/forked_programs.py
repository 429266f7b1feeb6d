"""Python programs that start fast: forks of one process that has imported Numba.

Importing it takes most of the time of a small program. This project's modules are not imported
before, and nothing has been compiled.
"""

import signal
import subprocess
from pathlib import Path

from tests import forks
from tests.waiting import CEILING


def run(program: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """`python -c program` in `folder`, with nothing to read. It must end well."""
    done = forks.run(__file__, program=program, folder=str(folder), environment=environment)
    assert done.returncode == 0, done.stderr
    return done


def become_program(program: str, folder: str, environment: dict[str, str]) -> None:
    forks.move(folder, environment)
    signal.alarm(int(CEILING))
    exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    import numba  # noqa: F401
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()  # what Numba imports when it loads the first function
    cpu_target.target_context.refresh()
    forks.serve(become_program)
